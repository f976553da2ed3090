"""Two schedulers with different names: each has its own leader, and they share the leases of the devices."""

from contextlib import closing
from pathlib import Path

from tests.support import installation, invariants
from tests.support.object_history import History
from tests.support.scheduler_stage import SYSTEM, Stage, pod, until

CANARY, SPACE = "canary-gpu-scheduler", "canary"


def beside(stage: Stage, folder: Path, *, system: str) -> Stage:
    """Return a stage for pods of another scheduler on the same nodes."""
    account = installation.scheduler_account(stage.cluster, CANARY, space=system, leases=SYSTEM)
    return Stage(
        stage.cluster, stage.namespace, folder, system, CANARY, static=True, account=account, closed=True
    )


def leaders(stage: Stage) -> set[str]:
    items = stage.cluster.api.request("GET", stage.leases_path)["items"]
    return {
        each["metadata"]["name"] for each in items if each["metadata"]["name"].endswith(".gpu.scheduling")
    }


def test_schedulers_in_two_namespaces_give_no_device_twice(bare_stage: Stage, tmp_path: Path) -> None:
    """Both pack, so that they choose the same devices."""
    bare_stage.gpu_nodes(4, gpus=4)
    bare_stage.cluster.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE}})
    with closing(beside(bare_stage, tmp_path, system=SPACE)) as canary:
        bare_stage.scheduler(leaseNamespace=SYSTEM, releaseSeconds=0)
        canary.scheduler(leaseNamespace=SYSTEM, releaseSeconds=0)
        with History(bare_stage.cluster) as history:
            mine = [pod(f"mine-{n}", gpus=1, strategy="binPack") for n in range(8)]
            theirs = [pod(f"theirs-{n}", gpus=1, strategy="binPack", schedulerName=CANARY) for n in range(8)]
            bare_stage.create(*(each for pair in zip(mine, theirs, strict=True) for each in pair))
            given = bare_stage.wait_bound()
            until(lambda: bare_stage.holds_exactly(), "leases match the bound pods")
        assert len(set(given.values())) == 16
        assert not canary.leases(), "device leases are in the shared namespace alone"
        assert leaders(bare_stage) == {"gpu-scheduler.gpu.scheduling"}
        assert leaders(canary) == {f"{CANARY}.gpu.scheduling"}
    invariants.check(history)


def test_schedulers_in_one_namespace_do_not_wait_for_each_other(bare_stage: Stage, tmp_path: Path) -> None:
    bare_stage.gpu_nodes(1, gpus=2)
    with closing(beside(bare_stage, tmp_path, system=SYSTEM)) as canary:
        bare_stage.scheduler()
        canary.scheduler()
        bare_stage.create(pod("mine", gpus=1), pod("theirs", gpus=1, schedulerName=CANARY))
        bare_stage.wait_bound("mine", "theirs")
