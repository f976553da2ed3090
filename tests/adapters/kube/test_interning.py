"""Sharing strings saves memory and changes no value."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks import kube_parse, pods
from gpu_orchestrator.adapters.kube.informer.interning import share
from gpu_orchestrator.adapters.kube.transport import codec
from gpu_orchestrator.api.kubernetes import PODS, Pod
from tests.support.paths import ROOT


def decode(number: int) -> Pod:
    return codec.decode(PODS, json.dumps(pods.pod(number)).encode())


def test_values_stay_what_they_were() -> None:
    for number in (1, 2, 3):
        obj = decode(number)
        share(obj)
        assert obj == decode(number)


def test_equal_strings_become_one() -> None:
    one, other = decode(1), decode(2)
    assert one.spec.tolerations[0].key is not other.spec.tolerations[0].key
    share(one)
    share(other)
    assert one.spec.tolerations[0].key is other.spec.tolerations[0].key
    assert one.metadata.labels["app"] is other.metadata.labels["app"]
    assert (
        one.spec.containers[0].resources.limits["memory"] is one.spec.containers[1].resources.limits["memory"]
    )


def test_the_defaults_of_the_types_are_left_alone() -> None:
    bare = codec.decode(PODS, b'{"metadata": {"name": "x"}}')
    share(bare)
    assert Pod(bare.metadata) == bare


def test_five_thousand_pods_take_at_most_40_mb(tmp_path: Path) -> None:
    """In a process of their own, full-sized pods as an API server tells them."""
    kube_parse.write(tmp_path, 5000)
    command = [sys.executable, "-m", "benchmarks.parse_ours", str(tmp_path)]
    figures = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    assert figures["objects"] == 5000
    assert figures["memory_mb"] <= 40
