"""The command that starts and ends workers: when it is called, and what is said if it fails."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.provisioners import command as command_provisioner
from gpu_orchestrator.adapters.provisioners.command import Command
from gpu_orchestrator.adapters.provisioners.provisioner import CannotScale, Wish
from tests.support.patience import PATIENCE_S


def command(folder: Path, code: str) -> Command:
    program = folder / "program.py"
    program.write_text(code)
    return Command(f"{sys.executable} {program}", ("SECRET",))


async def test_called_when_something_changed_and_again_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    said, bad = tmp_path / "said", tmp_path / "bad"
    code = f"import os, sys; open({str(said)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n'); "
    code += f"print('no quota', os.environ.get('SECRET_TOKEN')); sys.exit(os.path.exists({str(bad)!r}))"
    called = command(tmp_path, code)
    await called.scale(Wish(2, frozenset({"a"})))
    await called.scale(Wish(2, frozenset({"a", "b"})))  # somebody joined: nothing to tell
    assert said.read_text().splitlines() == ["2"]
    bad.touch()
    with pytest.raises(CannotScale, match="ended with 1; it said: no quota None"):
        await called.scale(Wish(1, frozenset(), ("b", "a")))
    bad.unlink()
    await called.scale(Wish(1, frozenset(), ("a", "b")))
    assert said.read_text().splitlines() == ["2", "1 a b", "1 a b"]


async def test_missing_program_is_named() -> None:
    with pytest.raises(CannotScale, match="/none/such cannot be run: No such file"):
        await Command("/none/such --flag").scale(Wish(1))


async def test_cancelled_call_leaves_no_program(tmp_path: Path) -> None:
    began = tmp_path / "began"
    os.mkfifo(began)
    code = f"import os, time; open({str(began)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    calling = asyncio.create_task(command(tmp_path, code).scale(Wish(1)))
    pid = int(await asyncio.to_thread(began.read_text))
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_daemon_that_keeps_the_output_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "left"
    code = "import subprocess; daemon = subprocess.Popen(['sleep', '600'], start_new_session=True); "
    code += f"open({str(left)!r}, 'w').write(str(daemon.pid))"
    monkeypatch.setattr(command_provisioner, "LONGEST_S", 2.0)
    monkeypatch.setattr(command_provisioner, "KILLED_S", 0.1)
    try:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(CannotScale, match="took longer than 2 s"):
                await command(tmp_path, code).scale(Wish(1))
    finally:
        os.kill(int(left.read_text()), signal.SIGKILL)
