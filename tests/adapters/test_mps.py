"""One MPS daemon starts with its ceilings, and ends with the process that started it."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from gpu_orchestrator.adapters import keeper
from gpu_orchestrator.adapters import mps as adapter
from gpu_orchestrator.adapters.mps import MpsDaemon, MpsFailed
from gpu_orchestrator.api.mps import Daemon
from tests.support import mps_program
from tests.support.mps_program import gone, is_there

pytestmark = pytest.mark.real


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return mps_program.install(tmp_path)


async def test_daemon_is_told_its_ceilings_in_the_folder_that_it_was_given(
    program: Path, tmp_path: Path
) -> None:
    wanted = Daemon("team", (0, 1), 1024, 250, ("GPU-a", "GPU-b"))
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(wanted.uuids)}
    folder = tmp_path / wanted.folder
    daemon = MpsDaemon(str(program), visible, folder=folder, commands=wanted.commands, answers=wanted.answers)
    await daemon.start()
    assert (folder / "told").read_text().splitlines() == list(wanted.commands)
    assert (folder / "visible").read_text() == "GPU-a,GPU-b"
    assert daemon.is_running
    await daemon.end()
    assert folder.exists(), "a folder that was given stays: containers have it mounted"


async def test_daemon_that_does_not_start_is_told_with_its_last_words(program: Path, tmp_path: Path) -> None:
    (program.parent / "refuses").touch()
    daemon = MpsDaemon(str(program), {}, folder=tmp_path / "p")
    with pytest.raises(MpsFailed, match=r"did not start: no device can be used$"):
        await daemon.start()
    assert not (tmp_path / "p" / "control").exists()


async def test_daemon_that_says_much_is_heard_to_the_end(tmp_path: Path) -> None:
    """Each client makes it say more; nobody may fill memory or disk, or block it."""
    talker = tmp_path / "talker"
    talker.write_text(
        "#!/bin/sh\nfor number in $(seq 20000); do echo client $number connected; done\n"
        'echo that was all; touch "$CUDA_MPS_PIPE_DIRECTORY/control"; exec sleep 600\n'
    )
    talker.chmod(0o755)
    daemon = MpsDaemon(str(talker), {"PATH": "/usr/bin:/bin"})
    await daemon.start()
    await daemon.end()
    assert daemon.last_words.endswith("client 20000 connected\nthat was all")
    assert len(daemon.last_words) <= adapter.LAST_WORDS


@pytest.mark.parametrize(
    ("commands", "said"),
    [
        (["nonsense"], 'Unknown command "nonsense"'),
        (["set_default_device_pinned_mem_limit 0 abc", "get_default_device_pinned_mem_limit 0"], ""),
    ],
    ids=["unknown command", "limit that is not understood"],
)
async def test_daemon_that_does_not_take_a_ceiling_is_ended(
    program: Path, commands: list[str], said: str
) -> None:
    daemon = MpsDaemon(str(program), {}, commands=commands, answers=1)
    with pytest.raises(MpsFailed, match=f"did not take .*; it said: {said}$"):
        await daemon.start()
    assert not daemon.is_running
    assert not daemon.folder.exists()


@pytest.mark.parametrize(
    ("script", "said"),
    [("sleep 600", "did not answer in"), ("exec yes", "says more than")],
)
async def test_daemon_whose_place_somebody_took_is_ended(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    monkeypatch.setattr(adapter, "TELL_S", 0.5)
    talk = tmp_path / "talk"
    talk.write_text(f'#!/bin/sh\nif [ "$1" = -f ]; then exec {program} -f; fi\n{script}\n')
    talk.chmod(0o755)
    daemon = MpsDaemon(str(talk), {"PATH": "/usr/bin:/bin"}, commands=["any"], answers=1)
    before = set(keeper.descendants(os.getpid()))
    with pytest.raises(MpsFailed, match=said):
        await daemon.start()
    assert not daemon.is_running
    await gone(set(keeper.descendants(os.getpid())) - before)


KILLED = """
import asyncio, sys
from gpu_orchestrator.adapters.mps import MpsDaemon
async def main():
    daemon = MpsDaemon(sys.argv[1], {})
    await daemon.start()
    print(daemon.keeper_pid, daemon.folder, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_daemon_ends_when_the_agent_is_killed(program: Path) -> None:
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, str(program), stdout=asyncio.subprocess.PIPE
    )
    assert agent.stdout is not None
    pid, folder = (await agent.stdout.readline()).decode().split()
    pids = {int(pid), *keeper.descendants(int(pid))}
    assert len(pids) == 3, "the keeper, the daemon and its server"
    agent.kill()
    await agent.wait()
    await gone(pids)
    assert not is_there(folder)


async def test_program_that_cannot_be_run_is_told(tmp_path: Path) -> None:
    daemon = MpsDaemon(str(tmp_path / "nowhere"), {})
    with pytest.raises(MpsFailed, match="did not start"):
        await daemon.start()
    assert not daemon.folder.exists()
