"""The watch keeps its store correct, however the stream fails. Time is virtual, the server is scripted."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import LostAnswer, Unreachable
from gpu_orchestrator.adapters.kube.informer.watch import Watch
from gpu_orchestrator.adapters.kube.transport.base import Answer
from tests.support.kube_objects import CONFIG_MAPS, ConfigMap, config_map
from tests.support.scripted_transport import HANG, Line, Scripted, answer, bookmark, event, refusal

pytestmark = pytest.mark.looptime

ADDED = event("ADDED", config_map("a", version=1))
LISTED = [ADDED, bookmark(5, end=True)]


class Watched:
    """A running watch, and the changes that its handler received: `+a`, `~a`, `-a`."""

    def __init__(self, watch: Watch[ConfigMap], transport: Scripted) -> None:
        self.watch, self.transport, self.changes = watch, transport, list[str]()
        self._wakeup = asyncio.Event()
        watch.on_change(self._record)

    def _record(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        sign = "+" if old is None else "-" if new is None else "~"
        self.changes.append(sign + ((new or old) or config_map()).metadata.name)
        self._wakeup.set()

    async def until(self, *changes: str, within_s: float = 3600) -> None:
        async with asyncio.timeout(within_s):
            while tuple(self.changes) != changes:
                self._wakeup.clear()
                await self._wakeup.wait()

    @property
    def targets(self) -> list[str]:
        return [request.target for request in self.transport.requests]


@asynccontextmanager
async def watching(*script: Line) -> AsyncIterator[Watched]:
    transport = Scripted(*script)
    watched = Watched(Watch(Client(transport), CONFIG_MAPS), transport)
    task = asyncio.create_task(watched.watch.run())
    try:
        yield watched
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_streamed_list_is_followed_by_changes() -> None:
    changed, gone = config_map("a", version=6), config_map("a", version=7)
    script: Line = [*LISTED, 1.0, event("MODIFIED", changed), event("DELETED", gone), HANG]
    async with watching(script) as watched:
        await watched.watch.synced()
        await watched.until("+a", "~a", "-a")
    assert "sendInitialEvents=true" in watched.targets[0]
    assert "resourceVersionMatch=NotOlderThan" in watched.targets[0]
    assert len(watched.watch.store) == 0


async def test_not_synced_before_the_list_is_complete() -> None:
    async with watching([ADDED, 5.0, bookmark(5, end=True), HANG]) as watched:
        await asyncio.sleep(1)
        assert not watched.watch.is_synced
        assert watched.changes == []
        await watched.watch.synced()
        assert watched.changes == ["+a"]


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param(refusal(422, "Invalid", "sendInitialEvents is forbidden"), id="feature off"),
        pytest.param([ADDED, HANG], id="older server that never ends the list"),
    ],
)
async def test_falls_back_to_paged_list(refused: Line) -> None:
    items = [msgspec.to_builtins(config_map("a"))]
    listed = answer({"metadata": {"resourceVersion": "5"}, "items": items})
    async with watching(refused, listed, [event("ADDED", config_map("b", version=6)), HANG]) as watched:
        await watched.until("+a", "+b", within_s=30)
    assert "limit=500" in watched.targets[1]
    assert "resourceVersion=5" in watched.targets[2]


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param([event("ADDED", config_map("b", version=6))[:-20]], id="ended within an event"),
        pytest.param([bookmark(9), LostAnswer("reset")], id="reset"),
        pytest.param(Unreachable("refused"), id="server away"),
        pytest.param(refusal(503), id="server error"),
        pytest.param(refusal(429, retry_after="1"), id="throttled"),
    ],
)
async def test_broken_stream_resumes_without_a_list(broken: Line) -> None:
    async with watching(LISTED, broken, [event("ADDED", config_map("b", version=10)), HANG]) as watched:
        await watched.until("+a", "+b", within_s=60)
    assert watched.watch.counts.lists == 1
    assert "resourceVersion=" in watched.targets[2]


async def test_resumes_at_the_last_bookmark() -> None:
    async with watching(
        LISTED, [bookmark(77), 30.0], [event("ADDED", config_map("b", version=80)), HANG]
    ) as watched:
        await watched.until("+a", "+b")
    assert "resourceVersion=77" in watched.targets[2]


@pytest.mark.parametrize(
    "gone",
    [
        pytest.param(refusal(410, "Expired"), id="410 to the request"),
        pytest.param(
            [event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})], id="410 as event"
        ),
        pytest.param([event("ERROR", {"kind": "Status", "code": 500})], id="another error as event"),
    ],
)
async def test_lost_version_lists_again_and_reports_deletions(gone: Line) -> None:
    again: Line = [event("ADDED", config_map("b", version=20)), bookmark(30, end=True), HANG]
    async with watching(LISTED, gone, again) as watched:
        await watched.until("+a", "-a", "+b", within_s=120)
    assert watched.watch.counts.lists == 2


async def test_silent_stream_is_replaced_within_a_minute() -> None:
    async with watching(LISTED, [HANG], [event("ADDED", config_map("b", version=10)), HANG]) as watched:
        await watched.watch.synced()
        await watched.until("+a", "+b", within_s=60)
    assert watched.watch.counts.hangs == 1
    assert watched.watch.counts.lists == 1


async def test_stream_silent_after_its_list_is_replaced() -> None:
    async with watching([*LISTED, HANG], [event("ADDED", config_map("b", version=10)), HANG]) as watched:
        await watched.until("+a", "+b", within_s=60)
    assert watched.watch.counts.lists == 1


async def test_unreachable_server_is_retried_with_backoff() -> None:
    async with watching(*[Unreachable("refused")] * 1000) as watched:
        await asyncio.sleep(600)
    assert 60 < len(watched.targets) < 300


async def test_streams_that_end_at_once_are_retried_with_backoff() -> None:
    async with watching(LISTED, *[[]] * 1000) as watched:
        await asyncio.sleep(600)
    assert len(watched.targets) < 300


async def test_stream_without_events_is_followed_by_the_next_at_once() -> None:
    """Otherwise a change after a long quiet time would arrive late."""
    loop = asyncio.get_running_loop()
    quiet: list[Line] = [[30.0]] * 20
    async with watching(LISTED, *quiet, [event("ADDED", config_map("b", version=6)), HANG]) as watched:
        await watched.watch.synced()
        began = loop.time()
        await watched.until("+a", "+b")
        assert loop.time() - began < 20 * 30 + 1


async def test_renews_credentials_after_401() -> None:
    async with watching(LISTED, refusal(401), [event("ADDED", config_map("b", version=6)), HANG]) as watched:
        await watched.until("+a", "+b", within_s=10)
    assert watched.transport.renewed == [False, False, True]


def fail(old: ConfigMap | None, new: ConfigMap | None) -> None:
    raise ValueError("a defect")


async def test_three_refusals_in_a_row_cause_a_list() -> None:
    """For instance, after a restore of etcd our version is newer than the server's."""
    again: Line = [event("ADDED", config_map("b", version=3)), bookmark(3, end=True), HANG]
    async with watching(LISTED, *[refusal(504, "Timeout", "Too large")] * 3, again) as watched:
        await watched.until("+a", "-a", "+b", within_s=60)


async def test_failing_handler_does_not_stop_the_others() -> None:
    async with watching([*LISTED, event("ADDED", config_map("b", version=6)), HANG]) as watched:
        watched.watch.on_change(fail)
        await watched.until("+a", "+b")
    assert len(watched.watch.store) == 2


async def test_late_handler_receives_existing_objects() -> None:
    async with watching([*LISTED, HANG]) as watched:
        await watched.watch.synced()
        late = list[str]()
        watched.watch.on_change(lambda old, new: late.append((new or config_map()).metadata.name))
    assert late == ["a"]


def misfit(name: str = "a", *, version: int, uid: str = "uid-a") -> dict[str, object]:
    meta = {"name": name, "namespace": "default", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": meta, "data": 7}


async def test_object_that_does_not_fit_keeps_its_last_good_state() -> None:
    bad = misfit(version=6)
    later = [event("MODIFIED", bad), event("ADDED", config_map("b", version=8))]
    again = [event("ADDED", bad), event("ADDED", config_map("b", version=8)), bookmark(9, end=True)]
    done: Line = [event("ADDED", config_map("c", version=10)), HANG]
    async with watching([*LISTED, *later], refusal(410, "Expired"), again, done) as watched:
        await watched.until("+a", "+b", "+c")
    assert watched.watch.counts.bad_objects == 2
    assert watched.watch.store.get("default/a") == config_map("a", version=1)


async def test_object_that_does_not_fit_can_be_deleted() -> None:
    script: Line = [*LISTED, event("MODIFIED", misfit(version=6)), event("DELETED", misfit(version=7)), 40.0]
    async with watching(script, [HANG]) as watched:
        await watched.until("+a", "-a", within_s=10)
        await asyncio.sleep(60)
    assert len(watched.watch.store) == 0
    assert "resourceVersion=7" in watched.targets[1]


async def test_misfit_deleted_during_the_list_is_not_stored() -> None:
    bad = [event("ADDED", misfit(version=6)), event("DELETED", misfit(version=7)), bookmark(8, end=True)]
    async with watching(LISTED, refusal(410, "Expired"), [*bad, HANG]) as watched:
        await watched.until("+a", "-a", within_s=60)


async def test_deletion_of_misfit_with_another_uid_is_ignored() -> None:
    late = [event("DELETED", misfit(version=6, uid="another")), event("ADDED", config_map("b", version=7))]
    async with watching([*LISTED, *late, HANG]) as watched:
        await watched.until("+a", "+b", within_s=10)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param([[*LISTED, event("ADDED", misfit(version=9, uid="another")), HANG]], id="watched"),
        pytest.param(
            [
                LISTED,
                refusal(410, "Expired"),
                [event("ADDED", misfit(version=9, uid="another")), bookmark(9, end=True), HANG],
            ],
            id="listed",
        ),
    ],
)
async def test_misfit_with_another_uid_removes_the_stored_object(script: list[Line]) -> None:
    async with watching(*script) as watched:
        await watched.until("+a", "-a", within_s=60)


async def test_stops_at_once_when_cancelled() -> None:
    transport = Scripted([*LISTED, HANG])
    task = asyncio.create_task(Watch(Client(transport), CONFIG_MAPS).run())
    await asyncio.sleep(1)
    task.cancel()
    async with asyncio.timeout(0.1):
        with pytest.raises(asyncio.CancelledError):
            await task


DEEP = b'{"a":' * 50_000 + b"1" + b"}" * 50_000


def deepened(text: bytes) -> bytes:
    """Return the JSON of a misfit nested deeper than any decoder accepts."""
    return text.replace(b'"data": 7', b'"data": ' + DEEP)


async def test_object_nested_too_deep_keeps_its_last_good_state() -> None:
    modified, added, deleted = (
        deepened(event(kind, misfit(version=version)))
        for kind, version in (("MODIFIED", 6), ("ADDED", 6), ("DELETED", 11))
    )
    other = event("ADDED", config_map("b", version=8))
    done: Line = [event("ADDED", config_map("c", version=10)), deleted, HANG]
    again: Line = [added, other, bookmark(9, end=True)]
    async with watching([*LISTED, modified, other], refusal(410, "Expired"), again, done) as watched:
        await watched.until("+a", "+b", "+c", "-a")
    assert watched.watch.counts.bad_objects == 2


async def test_page_with_an_object_nested_too_deep_gives_the_others() -> None:
    items = [msgspec.to_builtins(config_map(name, version=1)) for name in ("a", "b")]
    body = {"metadata": {"resourceVersion": "5"}, "items": [items[0], misfit("x", version=2), items[1]]}
    page = Answer(200, deepened(json.dumps(body).encode()), {})
    async with watching(refusal(400, "BadRequest"), page, [HANG]) as watched:
        await watched.until("+a", "+b")
    assert watched.watch.counts.bad_objects == 1
