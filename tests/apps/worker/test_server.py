"""A model that a server holds: the worker starts it, asks it, starts it again and ends it."""

import asyncio
import os
import queue
import signal
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker.frames import Health
from gpu_orchestrator.apps.worker.handlers import server_watch
from gpu_orchestrator.apps.worker.task import Cancelled, LoadFailed, Model, Temporary
from tests.apps.worker.conftest import NewWorker
from tests.apps.worker.test_models import Site, start
from tests.support.paths import ROOT
from tests.support.patience import PATIENCE_S
from tests.support.scripted_server import Peer

pytestmark = pytest.mark.real
CLASS = ("--model", "sized=gpu_orchestrator.apps.worker.handlers.server:Server", "--simulate", "1xL4:24GiB")


def options(journal: Path) -> Any:
    command = [sys.executable, "-m", "tests.support.model_server", "{port}", str(journal)]
    return {"command": command, "environment": {"PYTHONPATH": str(ROOT)}}


async def journaled(journal: Path, *lines: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while journal.read_text().split() != list(lines):  # noqa: ASYNC110, ASYNC240 - a file
            await asyncio.sleep(0.02)


async def test_server_is_started_asked_and_started_again(
    peer: Peer, new_worker: NewWorker, tmp_path: Path
) -> None:
    site, journal = await start(peer, new_worker, *CLASS), tmp_path / "journal"
    of = {"options": options(journal)}
    answer = await site.run("t1", "m", parameters={"messages": [{"role": "user", "content": "a b"}]}, **of)
    assert answer == {"text": "b a ", "finish_reason": "length", "prompt_tokens": 1, "completion_tokens": 2}
    assert await site.run("t2", "m", parameters={"texts": ["a", "bc"]}, **of) == {
        "embeddings": [[1.0], [2.0]],
        "tokens": 2,
    }
    await site.ask("t3", "m", parameters={"prompt": "refuse"}, **of)
    error = await site.failed("t3")
    assert (error.type, error.message) == ("BadParameters", "the model's server answered 400: as asked")
    await site.run("t4", "m", parameters={"prompt": "x y", "stream": True}, **of)
    sent = [m for m in peer.received if isinstance(m, session.Values) and m.task == "t4"]
    assert b"".join(bytes(value) for each in sent for value in each.values) == b'{"text":"y "}{"text":"x "}'
    await journaled(journal, "start")
    await site.ask("t5", "m", parameters={"prompt": "crash now"}, **of)
    error = await site.failed("t5")
    assert (error.retryable, "exit code 7" in error.message or "broke off" in error.message) == (True, True)
    await site.run("t6", "m", parameters={"prompt": "x"}, **of)
    await journaled(journal, "start", "crash", "start")
    await site.ask("t7", "m", parameters={"prompt": "forever and"}, **of)
    await journaled(journal, "start", "crash", "start", "begun")
    await peer.send(session.Cancel("t7", 1, grace_s=30.0))
    await peer.receive(session.Cancelled, "t7")
    await journaled(journal, "start", "crash", "start", "begun", "left")
    await site.ask("t8", "m", parameters={"prompt": "silent"}, **of)
    await peer.receive(session.Started, "t8")
    await peer.send(session.Cancel("t8", 1, grace_s=300.0))
    await peer.receive(session.Cancelled, "t8")


async def test_server_that_does_not_start_says_why(peer: Peer, new_worker: NewWorker, tmp_path: Path) -> None:
    site = await start(peer, new_worker, *CLASS)
    cases: tuple[tuple[Any, str], ...] = (
        ({}, "missing required field `command`"),
        ({"command": []}, "options.command is empty"),
        ({"command": [str(tmp_path / "none")]}, "cannot start"),
        (
            {"command": ["sh", "-c", "echo no weights; exit 3"]},
            "its server ended with exit code 3: no weights",
        ),
    )
    for number, (given, says) in enumerate(cases):
        await site.ask(f"t{number}", f"m{number}", parameters={"prompt": "x"}, options=given)
        error = await site.failed(f"t{number}")
        assert (error.type, says in error.message) == ("ModelLoadFailed", True), error


def model_of(*command: str, **options: Any) -> Model:
    raw = msgspec.json.encode({"command": command, **options})
    return Model("m", "", 0, raw, ("t", 1), Output())


def test_pauses_grow_and_begin_again_after_a_calm_time() -> None:
    pauses = server_watch.Pauses()
    assert [pauses.next(ran_s=1.0) for _ in range(9)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert pauses.is_longest
    assert [pauses.next(ran_s=61.0), pauses.next(ran_s=1.0)] == [0.5, 1.0]


def test_server_that_does_not_stay_is_given_up_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It crashes while no task asks it, and fails to start until the gate is there."""
    monkeypatch.setattr(server_watch, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(server_watch, "LONGEST_PAUSE_S", 0.2)
    gate, told = tmp_path / "gate", queue.Queue[Health]()
    serve = f"test -e {gate} || exit 3; exec {sys.executable} -m http.server --bind 127.0.0.1 {{port}}"
    model = model_of("sh", "-c", serve, health="/")
    with pytest.raises(LoadFailed, match="ended with exit code 3"):
        server_watch.ServerWatch(model, told.put).start()
    gate.touch()
    watch = server_watch.ServerWatch(model, told.put)
    watch.start()
    gate.unlink()
    os.kill(watch.pids()[0], signal.SIGKILL)
    assert told.get(timeout=PATIENCE_S).why.startswith("it was ended by signal 9")
    for restarts in (2, 3, 4):
        assert told.get(timeout=PATIENCE_S) == Health("restarting", "it ended with exit code 3", restarts)
    with (
        pytest.raises(Temporary, match="does not stay: it ended with exit code 3"),
        watch.request(lambda: None),
    ):
        pass
    gate.touch()
    while told.get(timeout=PATIENCE_S).state != "healthy":
        pass
    with watch.request(lambda: None) as port:
        assert port
    watch.close()
    with pytest.raises(Temporary, match="is being ended"), watch.request(lambda: None):
        pass
    assert watch.ended() is not None


def test_cancelled_task_waits_for_no_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_watch, "FIRST_PAUSE_S", 3600.0)
    monkeypatch.setattr(server_watch, "LONGEST_PAUSE_S", 7200.0)
    told = queue.Queue[Health]()
    serve = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "{port}")
    watch = server_watch.ServerWatch(model_of(*serve, health="/"), told.put)
    watch.start()
    os.kill(watch.pids()[0], signal.SIGKILL)
    told.get(timeout=PATIENCE_S)

    def cancelled() -> None:
        raise Cancelled

    with pytest.raises(Cancelled), watch.request(cancelled):
        pass
    watch.close()


def test_server_that_hangs_is_ended_and_started_again(tmp_path: Path) -> None:
    """It ignores SIGTERM, so it and its child are killed."""
    journal, told = tmp_path / "journal", queue.Queue[Health]()
    command = (sys.executable, "-m", "tests.support.model_server", "{port}", str(journal), "stubborn")
    often = {"check_seconds": 0.05, "unhealthy_seconds": 0.2, "stop_seconds": 0.2}
    model = model_of(*command, environment={"PYTHONPATH": str(ROOT)}, **often)
    watch = server_watch.ServerWatch(model, told.put)
    watch.start()
    with watch.request(lambda: None) as port, suppress(OSError):
        body = msgspec.json.encode({"prompt": "ill"})
        urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/completions", body, 10).read()
    why = "it did not say that it is healthy for 0.2 s"
    assert told.get(timeout=PATIENCE_S) == Health("restarting", why, 1)
    assert told.get(timeout=PATIENCE_S) == Health("healthy", why, 1)
    first, second = (int(each) for each in journal.read_text().split() if each.isdigit())
    watch.close()
    assert journal.read_text().split() == [str(first), "start", "term", str(second), "start", "term"]
    for child in (first, second):
        assert not runs(child)


def runs(pid: int) -> bool:
    """Return whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


async def test_server_that_crashes_while_nobody_asks_it_is_back_for_the_next_task(
    peer: Peer, new_worker: NewWorker, tmp_path: Path
) -> None:
    site, journal = await start(peer, new_worker, *CLASS), tmp_path / "journal"
    given = options(journal)
    given["command"] = ["sh", "-c", f'echo $$ > {tmp_path}/pid; exec "$@"', "sh", *given["command"]]
    await site.run("t1", "m", parameters={"prompt": "x"}, options=given)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    def copy(server: str) -> session.Copy | None:
        reports = (each for each in peer.received if isinstance(each, session.Report))
        found = (each for report in reports for each in report.copies)
        return next((each for each in found if (each.server, each.server_restarts) == (server, 1)), None)

    ill = await peer.until(lambda: copy("restarting"))
    assert ill.server_why == "it was ended by signal 9"
    await peer.until(lambda: copy("healthy"))
    await journaled(journal, "start", "start")
    assert (await site.run("t2", "m", parameters={"prompt": "x"}, options=given))["text"] == "x "


async def test_server_is_drained_before_it_is_stopped(
    peer: Peer, new_worker: NewWorker, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    journal.touch()
    worker = new_worker(*CLASS)
    site = Site(peer, await peer.receive(session.Hello))
    await site.ask("t1", "m", parameters={"prompt": "wait"}, options=options(journal))
    await journaled(journal, "start", "waits")
    worker.signal(signal.SIGTERM)
    await peer.receive(session.Leaving)
    await site.ask("t2", "m", parameters={"prompt": "x"}, options=options(journal))
    assert (await peer.receive(session.Refused, "t2")).reason == "the worker leaves"
    assert journal.read_text().split() == ["start", "waits"]
    journal.with_suffix(".gate").touch()
    assert (await site.done("t1"))["text"] == "wait "
    await asyncio.to_thread(worker.process.wait, PATIENCE_S)
    assert journal.read_text().split() == ["start", "waits", "term"]


class Output:
    def write_for(self, key: tuple[str, int], text: str) -> None: ...

    def write_line(self, key: tuple[str, int], line: str) -> None: ...


async def test_server_ends_with_its_model(peer: Peer, new_worker: NewWorker, tmp_path: Path) -> None:
    site, journal = await start(peer, new_worker, *CLASS), tmp_path / "journal"
    given = options(journal)
    given["command"] = ["sh", "-c", f'echo $$ > {tmp_path}/pid; exec "$@"', "sh", *given["command"]]
    await site.run("t1", "m", parameters={"prompt": "x"}, options=given)
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, 0)
    await site.ask("t2", "m", parameters={"prompt": "forever"}, options=given)
    await peer.receive(session.Started, "t2")
    await peer.send(session.Unload("m", False))
    await peer.send(session.Cancel("t2", 1, grace_s=30.0))
    await peer.receive(session.Cancelled, "t2")
    os.kill(pid, 0)
    await site.has("m")
    await peer.send(session.Unload("m", False))
    async with asyncio.timeout(PATIENCE_S):
        while os.path.exists(f"/proc/{pid}"):  # noqa: ASYNC110, ASYNC240 - a process
            await asyncio.sleep(0.02)
