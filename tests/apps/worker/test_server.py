"""A model that a server holds: the worker starts it, asks it, starts it again and ends it."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker.handlers import server_process
from gpu_orchestrator.apps.worker.task import Cancelled, LoadFailed, Model, Temporary
from tests.apps.worker.conftest import NewWorker
from tests.apps.worker.test_models import start
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


def test_pauses_between_crashes_grow_and_a_start_that_was_left_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "LONGEST_PAUSE_S", 4.0)
    gate, pauses = tmp_path / "gate", list[float]()
    server = (
        f"test -e {gate} || exit 3; sleep 0.2; exec {sys.executable} -m http.server --bind 127.0.0.1 {{port}}"
    )
    raw = msgspec.json.encode({"command": ["sh", "-c", server], "health": "/"})
    process = server_process.ServerProcess(Model("m", "", 0, raw, ("t", 1), Output()))
    with pytest.raises(LoadFailed, match="ended with exit code 3"):
        process.start(lambda: None, lambda _: None)
    with pytest.raises(Temporary, match="ended with exit code 3"):
        process.ensure(lambda: None, pauses.append, lambda _: None)
    assert pauses == [0.5, 1.0, 2.0, 4.0]
    gate.touch()

    def cancelled() -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        process.ensure(cancelled, pauses.append, lambda _: None)
    process.ensure(lambda: None, pauses.append, lambda _: None)
    assert (process.exit(), pauses[-1], len(pauses)) == (None, 4.0, 5)
    (pid,) = process.pids()
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert (process.exit() or "").startswith("was ended by signal 9")


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
