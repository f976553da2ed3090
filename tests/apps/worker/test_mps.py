"""MPS daemons start when they are needed, are shared by one owner's runners, and end with the worker."""

import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.mps import MpsFailed
from gpu_orchestrator.api.mps import limits
from gpu_orchestrator.apps.worker.environment import MEMORY_LIMIT
from gpu_orchestrator.apps.worker.runners.mps import MpsDaemons, find_program
from tests.support import mps_program
from tests.support.mps_program import gone, is_there
from tests.support.workers import is_alive

pytestmark = pytest.mark.real

ONE = ("GPU-a",)
VISIBLE = {"CUDA_VISIBLE_DEVICES": "GPU-a"}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return mps_program.install(tmp_path)


@pytest.fixture
async def daemons(program: Path) -> AsyncIterator[MpsDaemons]:
    daemons = MpsDaemons(str(program))
    yield daemons
    pids = daemons.pids()
    daemons.kill()
    await gone(pids)


def wait_without_the_loop(pids: set[int]) -> None:
    """Return when they have ended, and the event loop cannot have heard of it."""
    end = time.monotonic() + 30.0
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < end, f"still running: {pids}"
        time.sleep(0.01)


def test_each_device_has_the_limit() -> None:
    assert limits(1, 2000) == "0=2000M"
    assert limits(2, 500) == "0=500M,1=500M"


def test_missing_program_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        MpsFailed, match=r"GPU_SHARING=mps needs nvidia-cuda-mps-control.*GPU_SHARING=accounted"
    ):
        find_program()


async def test_runners_of_one_owner_share_a_daemon_and_others_do_not(daemons: MpsDaemons) -> None:
    first = await daemons.environment_of("ann", ONE, VISIBLE, 2000)
    same = await daemons.environment_of("ann", ONE, VISIBLE, 500)
    other = await daemons.environment_of("bob", ONE, VISIBLE, 2000)
    folder = Path(first["CUDA_MPS_PIPE_DIRECTORY"])
    assert (folder / "visible").read_text() == "GPU-a", "the daemon sees the devices of its runners alone"
    assert same["CUDA_MPS_PIPE_DIRECTORY"] == str(folder)
    assert other["CUDA_MPS_PIPE_DIRECTORY"] != str(folder)
    assert (first[MEMORY_LIMIT], same[MEMORY_LIMIT]) == ("0=2000M", "0=500M")
    server = int((folder / "server.pid").read_text())
    assert server in daemons.pids(), "what the server holds on the device is ours"


async def test_unused_daemon_ends_with_its_server_and_its_folder(daemons: MpsDaemons) -> None:
    kept = await daemons.environment_of("ann", ONE, VISIBLE, 2000)
    before = daemons.pids()
    ended = await daemons.environment_of("bob", ONE, VISIBLE, 2000)
    of_bob = daemons.pids() - before
    daemons.keep_only({("ann", ONE)})
    await gone(of_bob)
    assert daemons.pids() == before
    assert not is_there(ended["CUDA_MPS_PIPE_DIRECTORY"])
    assert is_there(kept["CUDA_MPS_PIPE_DIRECTORY"])


async def test_daemon_that_ended_is_replaced(daemons: MpsDaemons) -> None:
    first = await daemons.environment_of("ann", ONE, VISIBLE, 2000)
    pids = daemons.pids()
    folder = Path(first["CUDA_MPS_PIPE_DIRECTORY"])
    os.kill(int((folder / "control").read_text()), signal.SIGKILL)
    wait_without_the_loop(pids)
    second = await daemons.environment_of("ann", ONE, VISIBLE, 2000)
    assert second["CUDA_MPS_PIPE_DIRECTORY"] != first["CUDA_MPS_PIPE_DIRECTORY"]


async def test_daemon_that_does_not_start_is_told_with_its_log(program: Path, daemons: MpsDaemons) -> None:
    (program.parent / "refuses").touch()
    with pytest.raises(MpsFailed, match="no device can be used"):
        await daemons.check()
    (program.parent / "refuses").unlink()
    await daemons.check()
    assert not daemons.pids(), "a check leaves nothing behind"
