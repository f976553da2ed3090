"""What the agent leaves behind of the files of its attempts: nothing."""

import asyncio
import fcntl
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from gpu_orchestrator.adapters.process_rights import User
from gpu_orchestrator.apps.worker import frames
from gpu_orchestrator.apps.worker.attempts import attempt_files
from gpu_orchestrator.apps.worker.attempts.attempt_files import AttemptFiles, FileCallbacks


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def inside(folder: Path) -> list[str]:
    return os.listdir(folder)


class Server:
    """Answers no request before `goes_on` is set, and fails each then."""

    def __init__(self) -> None:
        self.goes_on, self.asked = asyncio.Event(), asyncio.Event()

    def __call__(self, *_: Any, **__: Any) -> "Server":
        return self

    async def __aenter__(self) -> None:
        self.asked.set()
        await self.goes_on.wait()
        raise OSError("gone")

    async def __aexit__(self, *_: object) -> None: ...


async def test_task_that_ended_while_its_file_came_leaves_no_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_files, "PAUSE_S", 0.0)
    monkeypatch.setattr(attempt_files, "AT_ONCE", 1)
    server, told = Server(), list[frames.Got]()
    files = AttemptFiles(FileCallbacks(server))
    for task in ("first", "second"):
        files.asked(frames.Wants(task, 1, 1, f"file-{'0' * 32}"), told.append)
    await server.asked.wait()
    for task in ("first", "second"):
        files.ended((task, 1))
    server.goes_on.set()
    await files._work.finish()
    (base,) = inside(folder)
    assert inside(folder / base) == ["lock"]
    assert told == []
    files.close()
    assert inside(folder) == []


async def test_file_that_cannot_be_fetched_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_files, "PAUSE_S", 0.0)
    server, told = Server(), list[frames.Got]()
    server.goes_on.set()
    files = AttemptFiles(FileCallbacks(server))
    files.asked(frames.Wants("t", 1, 7, f"file-{'0' * 32}"), told.append)
    await files._work.finish()
    assert [(each.number, each.error, each.lasting) for each in told] == [(7, "OSError: gone", False)]
    files.close()
    assert inside(folder) == []


def test_folders_of_killed_agents_are_removed_and_those_in_use_stay(folder: Path) -> None:
    for name in ("killed", "lives", "new", "other"):
        each = folder / (name if name == "other" else f"{attempt_files.NAMED}{name}")
        (each / "deep").mkdir(parents=True)
        if name != "new":
            (each / attempt_files.LOCK).touch()
    with (folder / f"{attempt_files.NAMED}lives" / attempt_files.LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        attempt_files.remove_stale()
    left = [name.removeprefix(attempt_files.NAMED) for name in inside(folder)]
    assert sorted(left) == ["lives", "new", "other"]


async def test_worker_without_room_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    told = list[frames.Got]()
    AttemptFiles(FileCallbacks(Server())).asked(frames.Wants("t", 1, 1), told.append)
    assert "No space left" in told[0].error
    assert not told[0].lasting


def test_agent_sends_nothing_that_is_not_the_users(tmp_path: Path) -> None:
    """The agent may be root, and what lies there is what a task says."""
    user = User("somebody", os.geteuid() + 1, os.getegid(), (), str(tmp_path))
    files = AttemptFiles(FileCallbacks(Server(), user))
    (tmp_path / "1").write_text("of another user")
    with pytest.raises(attempt_files.Refused, match="not a file of its own"):
        files._opened(tmp_path, "1")
    with AttemptFiles(FileCallbacks(Server()))._opened(tmp_path, "1") as opened:
        assert opened.read() == b"of another user"
