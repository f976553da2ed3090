"""Interning strings saves memory and changes no value."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks import kube_parse, pods
from gpu_orchestrator.adapters.kube.informer.interning import intern_strings
from gpu_orchestrator.adapters.kube.transport import codec
from gpu_orchestrator.api.kubernetes import PODS, Pod
from tests.support.paths import ROOT


def decode(number: int) -> Pod:
    return codec.decode(PODS, json.dumps(pods.pod(number)).encode())


def test_interned_object_keeps_its_value() -> None:
    for number in (1, 2, 3):
        obj = decode(number)
        intern_strings(obj)
        assert obj == decode(number)


def test_equal_strings_of_two_objects_become_one() -> None:
    one, other = decode(1), decode(2)
    assert one.spec.tolerations[0].key is not other.spec.tolerations[0].key
    intern_strings(one)
    intern_strings(other)
    assert one.spec.tolerations[0].key is other.spec.tolerations[0].key
    assert one.metadata.labels["app"] is other.metadata.labels["app"]
    assert (
        one.spec.containers[0].resources.limits["memory"] is one.spec.containers[1].resources.limits["memory"]
    )


def test_default_values_are_left_alone() -> None:
    bare = codec.decode(PODS, b'{"metadata": {"name": "x"}}')
    intern_strings(bare)
    assert Pod(bare.metadata) == bare


def test_5000_pods_need_at_most_40_mb(tmp_path: Path) -> None:
    """In a separate process, with full-sized pods as an API server sends them."""
    kube_parse.write(tmp_path, 5000)
    command = [sys.executable, "-m", "benchmarks.parse_ours", str(tmp_path)]
    figures = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    assert figures["objects"] == 5000
    assert figures["memory_mb"] <= 40
