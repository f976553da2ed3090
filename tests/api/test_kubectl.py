"""What a person sees with kubectl: install, apply the examples, get, explain, and be refused."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from controlplane.cluster import Cluster
from controlplane.errors import ClusterError
from gpu_orchestrator.api import crds
from tests.conftest import NewCluster
from tests.support.paths import ROOT
from tests.support.scheduler_stage import until

EXAMPLES = str(ROOT / "examples")


@pytest.fixture
def applied(kinds: Cluster, namespace: str) -> Iterator[str]:
    """A namespace with the examples in it."""
    kinds.kubectl("apply", "-n", namespace, "-f", EXAMPLES)
    yield namespace
    kinds.kubectl("delete", "gns", "node-a")
    kinds.kubectl("delete", "gq", "--all")


def test_install(cluster: Cluster) -> None:
    said = cluster.kubectl("apply", "-k", str(ROOT / "config/crd"), "--dry-run=server")
    assert {line.split()[0].rpartition("/")[2] for line in said.splitlines()} == {
        "gpuclaims.gpu.scheduling",
        "gpunodestatuses.gpu.scheduling",
        "gpuqueues.gpu.scheduling",
        "gpuworkloads.gpu.warp.dev",
    }


def test_columns(kinds: Cluster, applied: str) -> None:
    assert heads(kinds, applied, "gpuw") == ["NAME", "MODEL", "GPUS", "PHASE", "NODE", "AGE"]
    assert heads(kinds, applied, "gclaim") == ["NAME", "REQ", "POLICY", "TOPOLOGY", "ALLOCATED", "PHASE"]
    assert heads(kinds, applied, "gns") == ["NAME", "NODE", "DEVICES"]
    queue = ["NAME", "PARENT", "GUARANTEED", "LIMIT", "USED", "PENDING", "READY"]
    assert heads(kinds, applied, "gq") == queue


def test_wide_columns(kinds: Cluster, applied: str) -> None:
    wide = heads(kinds, applied, "gpuw", "-o", "wide")
    assert wide[-5:] == ["DEVICES", "STRATEGY", "PRIORITY", "RETRIES", "MESSAGE"]
    wide = heads(kinds, applied, "gns", "-o", "wide")
    assert wide[-4:] == ["HEALTHY", "IN USE", "MODEL", "DRIVER"]
    wide = heads(kinds, applied, "gq", "-o", "wide")
    assert wide[-6:] == ["BORROWED", "LENT", "WEIGHT", "SHARE", "MESSAGE", "AGE"]


def test_values_in_the_columns(kinds: Cluster, applied: str) -> None:
    sample = f"{EXAMPLES}/gpunodestatus-sample.yaml"
    kinds.kubectl("apply", "--server-side", "--subresource=status", "-f", sample)
    assert row(kinds, applied, "gns/node-a", "-o", "wide")[1:] == [
        "node-a",
        "2",
        "2",
        "1",
        "NVIDIA-A100-SXM4-80GB",
        "570.133.20",
    ]
    assert row(kinds, applied, "gclaim/two-connected-gpus")[1:] == ["2", "contiguous", "Required"]
    kinds.kubectl(
        "patch", "gpuw/my-model", "-n", applied, "--subresource=status", "--type=merge",
        "-p", '{"status": {"phase": "Running", "assignedNode": "node-a", "allocated": "node-a:0,1"}}',
    )  # fmt: skip
    assert row(kinds, applied, "gpuw/my-model")[1:5] == ["llama2", "2", "Running", "node-a"]
    assert row(kinds, applied, "gpuw/my-model", "-o", "wide")[6] == "node-a:0,1"


def test_values_in_the_columns_of_a_queue(kinds: Cluster, applied: str) -> None:
    ready = '{"type": "Ready", "status": "True"}'
    used = '{"A100": 1000, "*": 3000, "B200": 1500, "H100": 500}'
    said = f'{{"status": {{"used": {used}, "pending": 2, "conditions": [{ready}]}}}}'
    kinds.kubectl("patch", "gq/ml-team", "--subresource=status", "--type=merge", "-p", said)
    for _ in range(4):  # fields of an object have no order
        assert row(kinds, applied, "gq/ml-team")[1:] == ["company", "32000", "3000", "2", "True"]
    assert row(kinds, applied, "gq/research")[1:] == ["company", "16000"], "it has a limit for one model only"


def test_explain(kinds: Cluster) -> None:
    said = kinds.kubectl("explain", "gpuworkload.spec.retryPolicy")
    assert "maxRetries\t<integer>\n    Tries after which the workload is Failed." in said
    assert "backoffSeconds\t<integer>\n    Wait before the first new try" in said


def test_definitions_with_a_closed_list_of_strategies_are_upgraded(new_cluster: NewCluster) -> None:
    """Earlier releases accepted the built-in names only. Objects and defaults survive the upgrade."""
    cluster = new_cluster()
    (kind,) = (each for each in crds.KINDS if each.short_name == "gpuw")
    earlier = crds.definition(kind)
    field = spec_of(earlier)["schedulingStrategy"]
    for bound in ("pattern", "minLength", "maxLength"):
        del field[bound]
    field["enum"] = ["leastLoaded", "random", "costOptimized", "binPack", "leastFragmenting", "topology"]
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(earlier))
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd/gpuworkloads.gpu.warp.dev")
    cluster.kubectl("apply", "-f", f"{EXAMPLES}/gpuworkload-sample.yaml")
    with pytest.raises(ClusterError, match="Unsupported value"):
        set_strategy(cluster, "coolRacks")
    cluster.kubectl("apply", "-k", str(ROOT / "config/crd"))
    until(lambda: is_set(cluster, "coolRacks"), "the new definition is in force")
    cluster.kubectl("apply", "-f", f"{EXAMPLES}/gpuworkload-claimed.yaml")
    shown = cluster.kubectl("get", "gpuw", "-o", "jsonpath={.items[*].spec.schedulingStrategy}")
    assert shown.split() == ["random", "topology", "costOptimized", "coolRacks"]
    small = {"apiVersion": kind.resource.api_version, "kind": "GPUWorkload", "metadata": {"name": "small"}}
    cluster.kubectl(
        "apply", "-f", "-", stdin=yaml.safe_dump({**small, "spec": {"modelName": "m", "gpuCount": 1}})
    )
    shown = cluster.kubectl("get", "gpuw/small", "-o", "jsonpath={.spec.schedulingStrategy}")
    assert shown == "leastLoaded"


def spec_of(definition: dict[str, Any]) -> dict[str, Any]:
    whole = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    fields: dict[str, Any] = whole["properties"]["spec"]["properties"]
    return fields


def set_strategy(cluster: Cluster, name: str) -> str:
    body = f'{{"spec": {{"schedulingStrategy": "{name}"}}}}'
    return cluster.kubectl("patch", "gpuw/my-model", "--type=merge", "-p", body)


def is_set(cluster: Cluster, strategy: str) -> bool:
    try:
        return bool(set_strategy(cluster, strategy))
    except ClusterError:
        return False


def test_refusal_names_the_field(kinds: Cluster, applied: str) -> None:
    with pytest.raises(ClusterError, match=r"spec\.gpuCount: Invalid value: 9: .* less than or equal to 8"):
        kinds.kubectl(
            "patch", "gpuw/my-model", "-n", applied, "--type=merge", "-p", '{"spec": {"gpuCount": 9}}'
        )
    with pytest.raises(ClusterError, match=r"spec\.devices cannot be changed; create another GpuClaim"):
        kinds.kubectl(
            "patch", "gclaim/two-connected-gpus", "-n", applied, "--type=merge",
            "-p", '{"spec": {"devices": {"count": 4}}}',
        )  # fmt: skip


def test_mistyped_field_is_refused(kinds: Cluster, namespace: str) -> None:
    wrong = (ROOT / "examples/gpuworkload-sample.yaml").read_text().replace("gpuCount", "gpucount")
    with pytest.raises(ClusterError, match=r'unknown field "spec\.gpucount"'):
        kinds.kubectl("apply", "-n", namespace, "-f", "-", stdin=wrong)


def heads(cluster: Cluster, namespace: str, *what: str) -> list[str]:
    # Two blanks or more stand between columns; one stands inside "IN USE".
    first = cluster.kubectl("get", "-n", namespace, *what).splitlines()[0]
    return [head.strip() for head in first.split("  ") if head.strip()]


def row(cluster: Cluster, namespace: str, *what: str) -> list[str]:
    return cluster.kubectl("get", "-n", namespace, "--no-headers", *what).split()
