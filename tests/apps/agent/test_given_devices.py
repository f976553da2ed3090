"""What the kubelet gave to pods, while pods are deleted by force and kubelets do not answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from gpu_orchestrator.adapters.kubelet.pod_resources import GivenDevices
from gpu_orchestrator.api.gpunodestatus import GpuNodeStatusStatus, NodeDevice
from gpu_orchestrator.apps.agent.given_devices import KEEP_S, Given
from tests.support.agent_builders import device, look

SEEN = look(device(0), device(1))
TRAIN = GivenDevices("team", "train", "nvidia.com/gpu", ("GPU-0",))
OTHER = GivenDevices("team", "other", "nvidia.com/gpu", ("GPU-1",))
Users = dict[str, frozenset[str]]


@dataclass
class Site:
    """`listed` is what the kubelet says, None if it does not answer; `pods` the UIDs by name that the API
    server knows, `living` those with a process here."""

    listed: Sequence[GivenDevices] | None = (TRAIN,)
    pods: dict[tuple[str, str], str] = field(default_factory=lambda: {("team", "train"): "uid-a"})
    living: set[str] = field(default_factory=lambda: {"uid-a"})
    now: float = 0.0
    scans: int = 0

    def __post_init__(self) -> None:
        kubelet: Any = self
        self.given = Given(
            kubelet,
            uid_of=lambda namespace, name: self.pods.get((namespace, name)),
            is_known=lambda uid: uid in self.pods.values(),
            living=self.scan,
            clock=lambda: self.now,
        )

    async def list(self) -> Sequence[GivenDevices] | None:
        return self.listed

    async def scan(self) -> set[str]:
        self.scans += 1
        return self.living

    async def users(self, on_device: Users | None = None) -> Users:
        self.now += 5
        return await self.given.users(SEEN, on_device or {})


def users(**uids: str) -> Users:
    return {uuid.replace("_", "-"): frozenset({uid}) for uuid, uid in uids.items()}


HELD = users(GPU_0="uid-a")


async def test_pod_deleted_by_force_keeps_its_device_while_the_kubelet_lists_it() -> None:
    site = Site()
    assert await site.users() == HELD
    site.pods.clear()
    assert await site.users() == HELD
    assert site.scans == 0, "the kubelet said it: no process is looked for"


async def test_pod_deleted_by_force_keeps_its_device_while_a_process_of_it_lives() -> None:
    site = Site()
    await site.users()
    site.pods, site.listed = {}, ()  # a kubelet forgets the pod at once, and then ends its containers
    assert await site.users() == HELD
    site.living.clear()
    assert await site.users() == {}
    assert site.scans == 2
    await site.users()
    assert site.scans == 2, "nothing is left to look for"


async def test_pod_that_ended_in_order_frees_its_device_at_once() -> None:
    site = Site()
    await site.users()
    site.listed, site.living = (), set()
    assert await site.users() == {}


async def test_pod_of_the_same_name_does_not_hide_the_one_before() -> None:
    site = Site()
    await site.users()
    site.pods["team", "train"] = "uid-b"
    site.listed = (GivenDevices("team", "train", "nvidia.com/gpu", ("GPU-1",)),)
    assert await site.users() == users(GPU_0="uid-a", GPU_1="uid-b")


async def test_silent_kubelet_is_believed_for_a_moment_and_then_the_processes_are() -> None:
    site = Site()
    await site.users()
    site.listed = None
    site.pods.clear()
    for _ in range(int(KEEP_S // 5) - 1):
        assert await site.users() == HELD
    assert site.scans == 0
    assert await site.users() == HELD
    site.living.clear()
    assert await site.users() == {}


def report(**in_use_by: str) -> GpuNodeStatusStatus:
    devices = [
        NodeDevice(id=number, uuid=uuid.replace("_", "-"), in_use_by=[uid])
        for number, (uuid, uid) in enumerate(in_use_by.items())
    ]
    return GpuNodeStatusStatus(devices=devices)


@pytest.mark.parametrize("listed", [(TRAIN,), ()], ids=["listed", "forgotten"])
async def test_next_agent_knows_the_pod_from_the_report(listed: Sequence[GivenDevices]) -> None:
    site = Site(listed, pods={})
    site.given.recall(report(GPU_0="uid-a"))
    assert await site.users() == HELD


async def test_next_agent_does_not_take_a_pod_for_given_because_it_was_reported() -> None:
    """Else a pod that used a device it was not given would be right after a restart."""
    site = Site((), pods={("team", "thief"): "uid-a"})
    site.given.recall(report(GPU_0="uid-a"))
    assert await site.users() == {}


async def test_pod_that_nobody_knows_is_reported_by_its_name() -> None:
    site = Site((OTHER,), pods={})
    assert await site.users() == users(GPU_1="team/other")
    site.pods["team", "other"] = "uid-b"
    assert await site.users() == users(GPU_1="uid-b")


async def test_unknown_pod_is_the_unknown_user_of_its_device() -> None:
    site = Site((OTHER,), pods={})
    assert await site.users(users(GPU_1="uid-c")) == users(GPU_1="uid-c")


async def test_pod_of_a_plugin_with_names_of_its_own_is_known_as_such() -> None:
    site = Site((GivenDevices("team", "train", "nvidia.com/gpu", ("GPU-0-3",)),))
    with capture_logs() as logs:
        for _ in range(2):
            assert await site.users() == {}
            assert site.given.unplaced == {"uid-a"}
    assert [each["pod_uids"] for each in logs] == [["uid-a"]], "told once"
    site.listed = (TRAIN,)
    assert await site.users() == HELD
    assert site.given.unplaced == frozenset()
