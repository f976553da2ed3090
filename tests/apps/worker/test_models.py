"""Models on a real worker, in session with a scripted server: loaded once, kept, evicted, reported."""

import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import session
from tests.apps.worker.conftest import NewWorker
from tests.support.scripted_server import Peer
from tests.support.workers import gone_within

pytestmark = pytest.mark.real

SIZED = ("--model", "sized=tests.support.model_classes:Sized", "--simulate", "1xL4:24GiB")
BROKEN = ("--model", "broken=tests.support.model_classes:Broken", "--simulate", "1xL4:24GiB")
GIB = 1024


class Site:
    """A worker with one device, and tasks for it."""

    def __init__(self, peer: Peer, hello: session.Hello) -> None:
        self.peer, self.hello = peer, hello

    async def ask(self, task: str, model: str, gib: int = 8, parameters: Any = None, **more: Any) -> None:
        options = {"mib": gib * GIB, **more.pop("options", {})}
        wanted = session.Model(model, more.pop("path", ""), msgspec.Raw(msgspec.json.encode(options)))
        given = tuple(session.Given(each.index, each.uuid) for each in self.hello.devices)
        kept: dict[str, Any] = {"devices": given, "memory_mib": gib * GIB, "timeout_s": 60.0} | more
        await self.peer.assign(task, self.hello.model_types[0], parameters, model=wanted, **kept)

    def preload(self, model: str, gib: int = 8) -> session.Preload:
        options = msgspec.Raw(msgspec.json.encode({"mib": gib * GIB}))
        given = tuple(session.Given(each.index, each.uuid) for each in self.hello.devices)
        wanted = session.Model(model, options=options)
        return session.Preload(self.hello.model_types[0], wanted, given, gib * GIB)

    async def done(self, task: str) -> Any:
        return msgspec.json.decode((await self.peer.receive(session.Done, task)).result)

    async def run(self, task: str, model: str, gib: int = 8, parameters: Any = None, **more: Any) -> Any:
        await self.ask(task, model, gib, parameters, **more)
        return await self.done(task)

    async def failed(self, task: str) -> session.TaskError:
        return (await self.peer.receive(session.Failed, task)).error

    async def has(self, *models: str) -> dict[str, session.Copy]:
        """Wait for a report with exactly these models loaded."""

        def found() -> dict[str, session.Copy] | None:
            reports = [each for each in self.peer.received if isinstance(each, session.Report)]
            copies = {each.model: each for each in reports[-1].copies if each.is_loaded}
            return copies if sorted(copies) == sorted(models) else None

        return await self.peer.until(found)


async def start(peer: Peer, new_worker: NewWorker, *options: str) -> Site:
    new_worker(*options)
    return Site(peer, await peer.receive(session.Hello))


async def test_model_is_loaded_once_stays_and_is_reported(peer: Peer, new_worker: NewWorker) -> None:
    site = await start(peer, new_worker, *SIZED, "--model-cache-size", "3")
    assert (site.hello.model_types, site.hello.most_models) == (("sized",), 3)
    assert "sized" in site.hello.task_types
    first = await site.run("t1", "llama", options={"load_s": 0.05})
    second = await site.run("t2", "llama", options={"load_s": 0.05})
    assert (first["task"], second["task"], first["pid"]) == (1, 2, second["pid"])
    assert peer.log("t1").startswith(
        "loading model llama\nllama prints in its load\nloaded model llama in 0."
    )
    assert peer.log("t2") == ""
    (copy,) = (await site.has("llama")).values()
    assert (copy.used_mib, copy.devices, copy.pinned) == (8 * GIB, (0,), False)
    assert 0.05 <= copy.load_s < 30


async def test_owners_share_a_model_but_no_other_runner(peer: Peer, new_worker: NewWorker) -> None:
    site = await start(peer, new_worker, *SIZED)
    ann = await site.run("t1", "llama", owner="ann")
    bob = await site.run("t2", "llama", owner="bob")
    assert ann["pid"] == bob["pid"]


async def test_idle_model_goes_when_another_needs_its_memory(peer: Peer, new_worker: NewWorker) -> None:
    site = await start(peer, new_worker, *SIZED)
    await site.run("t1", "a", 10)
    await site.run("t2", "b", 10)
    await site.has("a", "b")
    assert (await site.run("t3", "c", 10))["model"] == "c"
    assert (await site.run("t4", "c", 10))["task"] == 2
    copies = await site.has("b", "c")
    assert copies["c"].used_mib == 10 * GIB
    reports = [each for each in peer.received if isinstance(each, session.Report)]
    assert (reports[-1].cache.misses, reports[-1].cache.evictions) == (3, 1)
    assert reports[-1].readings[0].free_mib == 4 * GIB, "the driver has the memory back"


async def test_ordinary_task_takes_the_place_of_an_idle_model(peer: Peer, new_worker: NewWorker) -> None:
    site = await start(peer, new_worker, *SIZED)
    await site.run("t1", "a", 20)
    given = tuple(session.Given(each.index, each.uuid) for each in site.hello.devices)
    await peer.assign("t2", "vram", {"mib": 4 * GIB}, devices=given, memory_mib=4 * GIB)
    await peer.receive(session.Done, "t2")
    await site.has("a")
    await peer.assign("t3", "vram", {"mib": 16 * GIB}, devices=given, memory_mib=16 * GIB)
    await peer.receive(session.Done, "t3")
    await site.has()


async def test_model_in_use_and_pinned_model_are_never_evicted(
    peer: Peer, new_worker: NewWorker, tmp_path: Path
) -> None:
    site = await start(peer, new_worker, *SIZED, "--max-concurrent", "3")
    await peer.send(session.Pins(("a",)))
    await site.run("t1", "a", 10)
    gate = tmp_path / "gate"
    await site.ask("t2", "b", 10, {"gate": str(gate)})
    await peer.receive(session.Started, "t2")
    await site.ask("t3", "c", 10)
    refused = await peer.receive(session.Refused, "t3")
    assert "MiB free" in refused.reason
    copies = await site.has("a", "b")
    assert copies["a"].pinned
    gate.touch()
    await site.done("t2")
    assert (await site.run("t4", "c", 10))["model"] == "c"
    await site.has("a", "c")
    given = tuple(session.Given(each.index, each.uuid) for each in site.hello.devices)
    await peer.assign("t5", "vram", {"mib": 1}, devices=given, exclusive=True)
    assert "model 'a' is pinned" in (await peer.receive(session.Refused, "t5")).reason
    await peer.send(session.Pins(()))
    await peer.assign("t6", "vram", {"mib": 1}, devices=given, exclusive=True)
    await peer.receive(session.Done, "t6")
    await site.has()


async def test_second_task_of_a_model_waits_for_its_load(
    peer: Peer, new_worker: NewWorker, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    site = await start(peer, new_worker, *SIZED, "--max-concurrent", "3")
    wish = {"options": {"journal": str(journal), "load_s": 0.2}}
    for number in range(3):
        await site.ask(f"t{number}", "llama", 4, **wish)
    answers = [await site.done(f"t{number}") for number in range(3)]
    assert [each["task"] for each in answers] == [1, 2, 3]
    assert journal.read_text() == "llama\n"


async def test_models_without_devices_stay_beside_each_other(peer: Peer, new_worker: NewWorker) -> None:
    site = await start(peer, new_worker, *SIZED, "--processes", "1", "--model-cache-size", "2")
    for task, model in (("t1", "a"), ("t2", "b"), ("t3", "a")):
        await site.ask(task, model, 0, devices=(), memory_mib=0)
    assert (await site.done("t3"))["task"] == 2
    await site.done("t2")
    await site.ask("t4", "c", 0, devices=(), memory_mib=0)
    await site.done("t4")
    await site.has("a", "c")


async def test_preload_and_unload(peer: Peer, new_worker: NewWorker, tmp_path: Path) -> None:
    site = await start(peer, new_worker, *SIZED)
    assert await site.run("t1", "llama", only_load=True) is None
    await site.has("llama")
    gate = tmp_path / "gate"
    await site.ask("t2", "llama", 8, {"gate": str(gate)})
    await peer.receive(session.Started, "t2")
    await peer.send(session.Unload("llama"))
    await peer.send(session.Unload("llama", force=True))
    error = await site.failed("t2")
    assert (error.type, error.retryable) == ("ModelUnloaded", True)
    await site.has()
    assert (await site.run("t3", "llama"))["task"] == 1
    await peer.send(session.Unload("llama"))
    await site.has()


async def test_changed_definition_is_loaded_anew(peer: Peer, new_worker: NewWorker, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    site = await start(peer, new_worker, *SIZED, "--model-cache-dir", str(tmp_path))
    assert (await site.run("t1", "llama", path="old"))["path"] == str(tmp_path / "old")
    assert (await site.run("t2", "new"))["path"] == str(tmp_path / "new"), "found by its name"
    after = await site.run("t3", "llama", path=str(tmp_path / "new"))
    assert (after["path"], after["task"]) == (str(tmp_path / "new"), 1)
    await site.has("llama", "new")


async def test_failed_and_crashed_tasks_of_a_model(peer: Peer, new_worker: NewWorker) -> None:
    """A task that fails leaves the model loaded; after one that kills the runner it is loaded again."""
    site = await start(peer, new_worker, *SIZED)
    await site.ask("t1", "llama", 8, {"fails": True})
    assert (await site.failed("t1")).message == "as asked"
    assert (await site.run("t2", "llama"))["task"] == 1
    await site.ask("t3", "llama", 8, {"crashes": True})
    assert "SIGSEGV" in (await peer.receive(session.RunnerDied, "t3")).evidence
    assert (await site.run("t4", "llama"))["task"] == 1


async def test_model_that_no_task_uses_goes_in_time(peer: Peer, new_worker: NewWorker) -> None:
    site = await start(peer, new_worker, *SIZED, "--model-ttl", "0.3")
    await site.run("t1", "llama")
    await site.has("llama")
    await site.has()


@pytest.mark.parametrize(
    ("model", "type_", "says", "retryable"),
    [
        pytest.param(
            "bad",
            "ModelLoadFailed",
            "model 'bad' could not be loaded: ValueError: weights of bad are not what they should be",
            False,
            id="raises",
        ),
        pytest.param("exit", "ModelLoadFailed", "could not be loaded: SystemExit: 3", False, id="exits"),
        pytest.param(
            "slow",
            "ModelLoadTimeout",
            "model 'slow' was not loaded within 0.5 s, and its runner was killed",
            True,
            id="takes too long",
        ),
    ],
)
async def test_load_that_fails_says_why(
    peer: Peer, new_worker: NewWorker, model: str, type_: str, says: str, retryable: bool
) -> None:
    site = await start(peer, new_worker, *BROKEN, "--model-load-timeout", "0.5")
    await site.ask("t1", model)
    error = await site.failed("t1")
    assert (error.type, error.retryable) == (type_, retryable)
    assert says in error.message
    assert (await site.has()) == {}


async def test_load_that_crashes_or_finds_nothing(peer: Peer, new_worker: NewWorker, tmp_path: Path) -> None:
    site = await start(peer, new_worker, *BROKEN)
    await site.ask("t1", "crash")
    assert "SIGSEGV" in (await peer.receive(session.RunnerDied, "t1")).evidence
    await site.ask("t2", "bad", path=str(tmp_path / "nowhere"))
    error = await site.failed("t2")
    assert error.message == f"model 'bad': there is nothing at {tmp_path / 'nowhere'} on this worker"


async def test_load_that_runs_out_of_memory_is_told_as_such(peer: Peer, new_worker: NewWorker) -> None:
    site = await start(peer, new_worker, *SIZED)
    await site.ask("t1", "llama", 8, options={"mib": 100 * GIB})
    error = await site.failed("t1")
    assert (error.type, error.retryable) == ("OutOfMemory", True)
    assert (await site.run("t2", "small"))["model"] == "small"
    await site.ask("t3", "llama", 8, options={"mib": 100 * GIB}, has_elsewhere=False)
    error = await site.failed("t3")
    assert (error.type, error.retryable) == ("OutOfMemory", False)
    assert error.message.endswith("no other GPU could take this model, so the task is not retried")


async def test_killed_worker_leaves_nothing_of_a_load(peer: Peer, new_worker: NewWorker) -> None:
    worker = new_worker(*BROKEN)
    site = Site(peer, await peer.receive(session.Hello))
    await site.ask("t1", "slow")
    await peer.receive(session.Started, "t1")
    worker.signal(signal.SIGKILL)
    gone_within(worker, 30.0)


def test_classes_that_cannot_be_used_are_named(new_worker: NewWorker, peer: Peer) -> None:
    worker = new_worker("--model", "x=tests.support.model_classes:Loadless")
    assert worker.process.wait(60) == 2
    assert "tests.support.model_classes.Loadless has no method load" in worker.log.read_text()


async def test_preload_needs_room_and_serves_the_next_task(peer: Peer, new_worker: NewWorker) -> None:
    site = await start(peer, new_worker, *SIZED, "--max-concurrent", "2")
    await site.run("t1", "a", 10)
    await peer.send(site.preload("b", 10), site.preload("c", 10))
    await site.has("a", "b")
    assert await site.run("t2", "b", 10) | {"pid": 0} == {"model": "b", "task": 1, "path": "", "pid": 0}
    assert peer.log("t2") == ""


async def test_preload_that_fails_disturbs_nobody(peer: Peer, new_worker: NewWorker) -> None:
    site = await start(peer, new_worker, *BROKEN, "--model-load-timeout", "0.5")
    await peer.send(site.preload("bad"))
    await site.ask("t1", "bad")
    error = await site.failed("t1")
    assert (error.type, "weights of bad" in error.message) == ("ModelLoadFailed", True)
    await peer.send(site.preload("slow"))
    assert (await site.has()) == {}
