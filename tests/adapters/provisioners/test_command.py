"""The command that starts and ends workers: when it is called, and what is said if it fails."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.provisioners.command import Command
from gpu_orchestrator.adapters.provisioners.provisioner import CannotScale, Wish


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
