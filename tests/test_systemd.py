"""The units of systemd: valid, hardened, and server and worker still do their work with the rights they have.

No systemd runs in tests: it checks the units, and `setpriv` takes the rights of root away in its place.
"""

import ctypes
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from controlplane.cluster import free_port
from gpu_orchestrator.cli.main import application
from tests.support.command_line import COMMAND, User
from tests.support.paths import ROOT
from tests.support.patience import PATIENCE_S
from tests.support.workers import open_to_all

UNITS = {each.stem: each for each in (ROOT / "packaging/systemd").glob("*.service")}
SERVER, WORKER = "gpu-orchestrator-server", "gpu-orchestrator-worker"
EXPOSURE = {SERVER: 17, WORKER: 31}
"""The most that systemd may find exposed, in tenths: 100 is a service without any of its limits."""
PROGRAM = "/opt/gpu-orchestrator/bin/gpu-orchestrator"
PR_SET_MDWE = 65
needs_systemd = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed"
)
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can give up single rights of root"
)


def settings(unit: str) -> dict[str, list[str]]:
    """Return the settings of the service, in order."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", UNITS[unit].read_text(), re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


@needs_systemd
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    (tmp_path / PROGRAM[1:]).parent.mkdir(parents=True)
    shutil.copy(shutil.which("true") or "", tmp_path / PROGRAM[1:])
    shutil.copytree("/usr/lib/systemd/system", tmp_path / "usr/lib/systemd/system", symlinks=True)
    for unit in UNITS.values():
        shutil.copy(unit, tmp_path / "usr/lib/systemd/system")
    words = [
        "systemd-analyze",
        "verify",
        "--man=no",
        f"--root={tmp_path}",
        *(each.name for each in UNITS.values()),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    about_ours = [line for line in done.stderr.splitlines() if "gpu-orchestrator" in line]
    assert about_ours == []
    assert done.returncode == 0, done.stderr


@needs_systemd
@pytest.mark.parametrize("unit", UNITS)
def test_units_expose_little(unit: str) -> None:
    words = ["systemd-analyze", "security", "--offline=yes", "--no-pager", f"--threshold={EXPOSURE[unit]}"]
    done = subprocess.run([*words, str(UNITS[unit])], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-200:] + done.stderr


@pytest.mark.parametrize("unit", UNITS)
def test_command_exists_and_its_options_are_known(unit: str) -> None:
    (line,) = settings(unit)["ExecStart"]
    program, *words = line.split()
    assert program == PROGRAM
    _, bound, *_ = application(words).parse_args(words, exit_on_error=False, print_error=False)
    assert {name for name in bound.arguments if name != "tokens"} == {
        word[2:].replace("-", "_") for word in words if word.startswith("--")
    }


@pytest.mark.skipif(not shutil.which("systemd-sysusers"), reason="systemd-sysusers is not installed")
def test_users_of_the_units_are_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    file = ROOT / "packaging/systemd/gpu-orchestrator.sysusers"
    subprocess.run(["systemd-sysusers", f"--root={tmp_path}", str(file)], check=True, capture_output=True)
    made = {line.split(":")[0]: line for line in (tmp_path / "etc/passwd").read_text().splitlines()}
    tasks = dict(each.split("=", 1) for each in settings(WORKER)["Environment"])["GPU_ORCHESTRATOR_RUN_AS"]
    assert made.keys() == {*settings(SERVER)["User"], tasks}
    assert all(line.endswith("/nologin") for line in made.values())


def test_stop_reaches_the_main_process_alone_and_in_time() -> None:
    """Else the store ends before the server, and tasks before the worker could wait for them."""
    assert {unit: settings(unit)["KillMode"] for unit in UNITS} == {unit: ["mixed"] for unit in UNITS}
    assert int(settings(WORKER)["TimeoutStopSec"][0]) > 60, "the worker waits 60 s for its tasks"


@pytest.mark.real
@needs_root
def test_server_and_worker_do_their_work_with_these_rights(tmp_path: Path) -> None:
    user = User(tmp_path, API_PORT=str(free_port()))
    with limited(SERVER, user, "server"), tempfile.TemporaryDirectory() as name:
        until(lambda: user.run("status").returncode == 0)
        Path(name).chmod(0o755)  # unlike `tmp_path`, all users may look into it
        gpus = ("--simulate", "1", "--simulation", f"{name}/gpus")
        with limited(WORKER, user, "worker", *gpus, "--run-as", "nobody", before=open_to_all()):
            user.says("task", "submit", "echo", "--memory", "1GB", "--wait")
            task = user.says("task", "submit", "sleep", "seconds=600", "--memory", "1GB", "-q").strip()
            until(lambda: status(user, task) == "running")
            user.says("task", "cancel", task)
            until(lambda: status(user, task) == "cancelled")


def status(user: User, task: str) -> str:
    return str(user.json("task", "get", task)["status"])


@contextmanager
def limited(unit: str, user: User, *words: str, before: Sequence[str] = ()) -> Iterator[None]:
    """Run a command as root with no rights of root but those in the unit, and with its limit on memory."""
    rights = settings(unit)["CapabilityBoundingSet"][0].lower().replace("cap_", "+").split()
    bounds = f"--bounding-set={','.join(['-all', *rights])}"
    given = [*before, "setpriv", "--no-new-privs", "--inh-caps=-all", bounds, COMMAND, *words]
    writes = settings(unit).get("MemoryDenyWriteExecute") != ["yes"]
    with (user.folder / f"{words[0]}.log").open("w+b") as log:
        process = subprocess.Popen(
            given,
            cwd=user.folder,
            env=user.environ,
            stdout=log,
            stderr=log,
            preexec_fn=None if writes else deny_write_execute,
        )
        try:
            yield
            process.terminate()
            assert process.wait(PATIENCE_S) in (0, -signal.SIGTERM)
        except BaseException as error:
            log.seek(0)
            error.add_note(f"{words[0]} printed:\n{log.read().decode()[-3000:]}")
            raise
        finally:
            process.kill()
            process.wait()


def deny_write_execute() -> None:
    """Do what MemoryDenyWriteExecute does; kernels before 6.3 know no such limit for one process."""
    ctypes.CDLL(None).prctl(PR_SET_MDWE, 1, 0, 0, 0)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
