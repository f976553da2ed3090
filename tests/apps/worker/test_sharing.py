"""A worker with `--sharing mps` runs tasks that reserved part of a GPU under a daemon of their owner. That
such a daemon limits memory is NVIDIA's part: docs/decisions/0012-shares-that-hold.md says how that was
tried."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker.environment import MEMORY_LIMIT
from tests.apps.worker.conftest import NewWorker
from tests.support import mps_program
from tests.support.scripted_server import Peer

pytestmark = pytest.mark.real
SHARING = (
    "--simulate", "1", "--max-concurrent", "4", "--sharing", "mps",
    "--function", "environment_of=tests.support.worker_functions:environment_of",
)  # fmt: skip


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", mps_program.path_with(folder))
    return mps_program.install(folder)


async def variables(peer: Peer, hello: session.Hello, task: str, owner: str, **more: Any) -> dict[str, str]:
    """Run a task on the device; return the variables of MPS that it saw, and its process id."""
    given = (session.Given(0, hello.devices[0].uuid),)
    parameters = {"function": "environment_of", "arguments": {}}
    await peer.assign(task, "python", parameters, owner=owner, devices=given, **more)
    own = msgspec.json.decode((await peer.receive(session.Done, task)).result)["own"]
    return {name: value for name, value in own.items() if name.startswith("CUDA_MPS_")}


async def test_share_runs_under_a_daemon_of_its_owner_with_its_reservation_as_limit(
    peer: Peer, new_worker: NewWorker
) -> None:
    worker = new_worker(*SHARING)
    hello = await peer.receive(session.Hello)
    assert hello.sharing == "mps"
    first = await variables(peer, hello, "a1", "ann", memory_mib=2000)
    larger = await variables(peer, hello, "a2", "ann", memory_mib=3000)
    other = await variables(peer, hello, "b1", "bob", memory_mib=2000)
    whole = await variables(peer, hello, "c1", "ann", exclusive=True)
    assert (first[MEMORY_LIMIT], larger[MEMORY_LIMIT], other[MEMORY_LIMIT]) == (
        "0=2000M", "0=3000M", "0=2000M",
    )  # fmt: skip
    assert larger["CUDA_MPS_PIPE_DIRECTORY"] == first["CUDA_MPS_PIPE_DIRECTORY"]
    assert other["CUDA_MPS_PIPE_DIRECTORY"] != first["CUDA_MPS_PIPE_DIRECTORY"]
    assert whole == {}, "a task with a whole device needs no daemon"
    worker.close()  # by SIGKILL; the fixture checks that no process is left, daemons included


async def test_daemon_that_was_killed_is_replaced_before_the_next_task(
    peer: Peer, new_worker: NewWorker
) -> None:
    """Without its daemon, a process would use the device directly, without a limit."""
    new_worker(*SHARING)
    hello = await peer.receive(session.Hello)
    first = await variables(peer, hello, "a1", "ann", memory_mib=2000)
    mps_program.kill(first["CUDA_MPS_PIPE_DIRECTORY"])
    second = await variables(peer, hello, "a2", "ann", memory_mib=3000)
    assert second["CUDA_MPS_PIPE_DIRECTORY"] != first["CUDA_MPS_PIPE_DIRECTORY"]


def test_worker_does_not_start_without_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("GPU_ORCHESTRATOR_TOKEN", "t" * 64)
    program = str(Path(sys.executable).with_name("gpu-orchestrator"))
    where = ("--server", "http://127.0.0.1:9", "--name", "w", "--simulate", "1", "--sharing", "mps")
    ended = subprocess.run([program, "worker", *where], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "GPU_SHARING=mps needs nvidia-cuda-mps-control" in ended.stderr
    wrong = subprocess.run(
        [program, "worker", *where[:-1], "time"], capture_output=True, text=True, timeout=60
    )
    assert (wrong.returncode, "GPU_SHARING is 'time'; write accounted or mps" in wrong.stderr) == (2, True)
