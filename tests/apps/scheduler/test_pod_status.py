"""A condition that we write on a waiting pod must not make our own bind fail: the bind names its version."""

import asyncio
import json
from contextlib import AbstractAsyncContextManager

import msgspec
import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import Conflict
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.adapters.kube.transport.base import Answer, Request, Stream
from gpu_orchestrator.api.kubernetes import Pod, PodCondition, PodStatus
from gpu_orchestrator.apps.scheduler.binding.pod_status import PodStatusWriter, condition
from tests.support.scheduler_objects import pod

pytestmark = pytest.mark.looptime


class PodServer:
    """Stores one pod; a write that names its version moves the version, except for the first `unmoved`."""

    def __init__(self, version: str) -> None:
        self.version, self.unmoved = version, 0

    async def send(self, request: Request, *, timeout_s: float, renew: bool = False) -> Answer:
        await asyncio.sleep(1)
        if json.loads(request.body or b"{}")["metadata"]["resourceVersion"] != self.version:
            return Answer(409, b'{"kind":"Status","code":409,"reason":"Conflict"}')
        if self.unmoved:
            self.unmoved -= 1
        else:
            self.version = str(int(self.version) + 10_000)
        meta = {"name": "p", "namespace": "default", "uid": "uid-p", "resourceVersion": self.version}
        return Answer(200, json.dumps({"metadata": meta}).encode())

    def stream(
        self, request: Request, *, timeout_s: float, renew: bool = False
    ) -> AbstractAsyncContextManager[Stream]:
        raise NotImplementedError

    async def close(self) -> None: ...


class Scene:
    def __init__(self) -> None:
        self.pod, self.known = pod("p", gpus=1), Store[Pod]()
        self.known.put(self.pod)
        self.server = PodServer(self.pod.metadata.resource_version)
        self.writer = PodStatusWriter(Client(self.server), self.known)

    async def version(self) -> str:
        return (await self.writer.latest(self.pod)).metadata.resource_version

    def show(self, version: str) -> None:
        """Let the watch show the pod at this version."""
        seen = pod("p", gpus=1, meta={"resourceVersion": version})
        for change in self.known.put(seen):
            self.writer.on_pod(*change)
        self.pod = seen


async def test_bind_waits_for_our_write_and_names_its_version() -> None:
    scene = Scene()
    writing = asyncio.create_task(scene.writer.bump_version(scene.pod, "does not fit"))
    await asyncio.sleep(0.5)
    assert await scene.version() == scene.server.version
    assert (await writing).metadata.resource_version == scene.server.version
    assert await scene.version() == scene.server.version  # the watch has not shown it yet


async def test_version_of_the_watch_is_used_once_it_caught_up() -> None:
    scene = Scene()
    written = (await scene.writer.bump_version(scene.pod, "does not fit")).metadata.resource_version
    scene.show(written)
    assert await scene.version() == written
    scene.show(str(int(written) + 1))
    assert await scene.version() == str(int(written) + 1)


async def test_refused_write_does_not_change_the_known_version() -> None:
    scene = Scene()
    known = scene.pod.metadata.resource_version
    scene.server.version = "7"
    with pytest.raises(Conflict):
        await scene.writer.bump_version(scene.pod, "does not fit")
    assert await scene.version() == known


async def test_bind_decided_before_our_write_succeeds_after_the_watch_showed_it() -> None:
    """The watch may be faster than the answer; the bind still has the pod of before."""
    scene = Scene()
    decided_for = scene.pod
    writing = asyncio.create_task(scene.writer.bump_version(scene.pod, "does not fit"))
    await asyncio.sleep(0.5)
    scene.show(str(int(scene.server.version) + 10_000))
    await writing
    latest = await scene.writer.latest(decided_for)
    assert latest.metadata.resource_version == scene.server.version
    assert latest.metadata.uid == decided_for.metadata.uid


async def test_write_of_others_is_not_taken_for_ours() -> None:
    """Such as that of a new leader, which moves the version so that our late bind fails."""
    scene = Scene()
    decided_for = scene.pod
    scene.show("7")
    scene.server.version = "7"
    await scene.writer.bump_version(scene.pod, "does not fit")
    assert await scene.writer.latest(decided_for) == decided_for


@pytest.mark.parametrize("end", ["gone before the answer", "gone after it", "bound"])
async def test_writes_to_a_pod_that_is_bound_or_gone_are_forgotten(end: str) -> None:
    scene = Scene()
    writing = asyncio.create_task(scene.writer.bump_version(scene.pod, "does not fit"))
    await asyncio.sleep(0.5 if end == "gone before the answer" else 2)
    bound = pod("p", node="n", gpus=1, meta={"resourceVersion": "99999"})
    changes = scene.known.put(bound) if end == "bound" else scene.known.drop("default/p")
    for change in changes:
        scene.writer.on_pod(*change)
    await writing
    assert scene.writer._moved == {}


def waiting_since(status: str, moment: str | None) -> Pod:
    condition = PodCondition("PodScheduled", status, last_transition_time=moment)
    return msgspec.structs.replace(pod("p", gpus=1), status=PodStatus(conditions=[condition]))


@pytest.mark.parametrize(
    ("status", "moment", "is_kept"),
    [
        pytest.param("False", "2026-01-01T00:00:00Z", True, id="waits already"),
        pytest.param("True", "2026-01-01T00:00:00Z", False, id="did not wait"),
        pytest.param("False", None, False, id="without a time"),
    ],
)
def test_time_of_the_condition_is_when_the_pod_began_to_wait(
    status: str, moment: str | None, is_kept: bool
) -> None:
    body = condition(waiting_since(status, moment), "Unschedulable", "no room")
    written = body["status"]["conditions"][0]["lastTransitionTime"]
    assert (written == moment) is is_kept
    assert written


async def test_version_that_did_not_move_is_moved_again() -> None:
    """The server counts in seconds: a second write within one second may change nothing."""
    scene = Scene()
    scene.server.unmoved = 1
    before = scene.pod.metadata.resource_version
    written = await scene.writer.bump_version(scene.pod, "does not fit")
    assert written.metadata.resource_version == scene.server.version != before
