"""PodGroups, Kubernetes' own gangs, on a real API server that serves them."""

from controlplane.api import Json
from controlplane.audit import Entry
from tests.support import installation, rights
from tests.support.scheduler_stage import SYSTEM, Stage, pod, pod_group, until

FOLDER = installation.CONFIG / "scheduler-podgroups"
USER = f"system:serviceaccount:{SYSTEM}:gpu-scheduler"
OLD_SERVERS = "gpu-scheduler-podgroups: list podgroups"
"""For those that do not stream lists."""
GRANTED = rights.granted("scheduler-podgroups/role.yaml")
FOR_ALL = ("/apis/scheduling.k8s.io/v1alpha2", "/apis/gpu.scheduling/v1", "selfsubjectaccessreviews")
"""Any user may ask whether PodGroups and GpuQueues are served, and what they may do themselves."""


def members(group: str, count: int, gpus: int = 8, *, prefix: str = "", **more: object) -> list[Json]:
    grouped = {"schedulingGroup": {"podGroupName": group}}
    return [pod(f"{prefix or group}-{at}", gpus=gpus, **grouped, **more) for at in range(count)]


def condition(stage: Stage, group: str, type_: str = "PodGroupScheduled") -> tuple[str, str, str]:
    found = stage.pod_group(group).get("status", {}).get("conditions", [])
    mine: Json = next((each for each in found if each["type"] == type_), {})
    return mine.get("status", ""), mine.get("reason", ""), mine.get("message", "")


def grant(stage: Stage) -> None:
    made = list(installation.documents(FOLDER))
    for each in made:
        installation.create(stage.cluster, each)
    installation.await_rights(stage.cluster, made)


def test_pod_group_starts_whole_in_one_rack_and_says_so(bare_stage: Stage) -> None:
    """Two racks of two nodes; three pods of four, a launcher among them, must start together in one."""
    stage = bare_stage
    for rack in ("x", "y"):
        stage.gpu_nodes(1, gpus=8, prefix=f"{stage.namespace}-{rack}", labels={"rack": rack})
    grant(stage)
    stage.scheduler(leaderElect=False, releaseSeconds=1)
    stage.create(*members("train", 3), pod("alone", gpus=8, schedulingGroup={"podGroupName": "late"}))
    stage.wait_event("train-0", f"PodGroup {stage.namespace}/train does not exist; create it")
    stage.create(pod_group("train", 3, schedulingConstraints={"topology": [{"key": "rack"}]}))
    few = f"gang {stage.namespace}/train (PodGroup): 0 of 3 members fit together in one rack"
    stage.wait_event("train-0", few)
    until(lambda: condition(stage, "train")[:2] == ("False", "Unschedulable"), "the group says that it waits")
    assert condition(stage, "train")[2].startswith(few)
    assert stage.leases() == {}
    stage.gpu_nodes(2, gpus=8, prefix=f"{stage.namespace}-more", labels={"rack": "y"})
    bound = stage.wait_bound("train-0", "train-1", "train-2")
    assert f"{stage.namespace}-x" not in str(bound)
    until(lambda: condition(stage, "train")[:2] == ("True", "Scheduled"), "the group says that it runs")
    stage.create(pod_group("late", 1))
    assert f"{stage.namespace}-x" in stage.wait_bound("alone")["alone"]
    assert stage.holds_exactly()
    stage.running[0].stop()  # the audit log records a watch when it ends
    until(lambda: set(rights.unused(GRANTED, sent(stage))) <= {OLD_SERVERS}, "every right was used")
    assert rights.beyond(GRANTED | rights.granted("scheduler/role.yaml"), sent(stage)) == []


def sent(stage: Stage) -> list[Entry]:
    """Return what the ServiceAccount has requested."""
    entries = stage.cluster.audit.entries(USER)
    return [each for each in entries if each.user == USER and each.resource not in FOR_ALL]
