"""A stand-in for `nvidia-cuda-mps-control`: with `-f` it listens where the real one does, and starts a server
of its own; without, it takes commands and answers as the real one does. It limits nothing; that the real one
does was tried on a GPU, see docs/decisions/0012-shares-that-hold.md and 0014.
"""

import asyncio
import os
import select
import signal
import sys
from pathlib import Path

from tests.support.workers import is_alive

PROGRAM = """#!{python}
import os, subprocess, sys, time
folder = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
if sys.argv[1:] != ["-f"]:
    assert os.path.exists(os.path.join(folder, "control")), "no daemon listens"
    told = sys.stdin.read()
    open(os.path.join(folder, "told"), "a").write(told)
    limits = dict()
    for verb, *words in map(str.split, told.splitlines()):
        if verb == "set_default_device_pinned_mem_limit":
            limits[words[0]] = words[1] if words[1][0].isdigit() else None
        elif verb == "get_default_device_pinned_mem_limit":
            if limits.get(words[0]):
                print(limits[words[0]])
        elif verb == "set_default_active_thread_percentage":
            print(float(words[0]))
        else:
            print(f'Unknown command "{{verb}}"')
    sys.exit(0)
if os.path.exists({refusal!r}):
    print("no device can be used")
    sys.exit(1)
server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open(os.path.join(folder, "server.pid"), "w") as file:
    file.write(str(server.pid))
open(os.path.join(folder, "visible"), "w").write(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
with open(os.path.join(folder, "starting"), "w") as file:
    file.write(str(os.getpid()))
os.rename(os.path.join(folder, "starting"), os.path.join(folder, "control"))
time.sleep(600)
"""


def install(folder: Path) -> Path:
    """Write the program into a folder and return its path. While `refuses` is there, it does not start."""
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(PROGRAM.format(python=sys.executable, refusal=str(folder / "refuses")))
    program.chmod(0o755)
    return program


def path_with(folder: Path) -> str:
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def kill(folder: str) -> None:
    """Kill the daemon that listens in this folder, and return when its keeper has ended with it."""
    pid = int((Path(folder) / "control").read_text())
    keeper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    ended = os.pidfd_open(keeper)
    os.kill(pid, signal.SIGKILL)
    select.select([ended], [], [], 30)
    os.close(ended)


async def gone(pids: set[int]) -> None:
    """Return when none of these processes is left."""
    for _ in range(3000):
        if not [pid for pid in pids if is_alive(pid)]:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"still running: {pids}")


def is_there(folder: str) -> bool:
    return Path(folder).exists()
