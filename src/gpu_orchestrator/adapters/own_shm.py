"""Run a program with a /dev/shm of its own: `python -m gpu_orchestrator.adapters.own_shm FOLDER PROGRAM …`.

MPS of older drivers exchanges data with its clients through files in /dev/shm. Those of one daemon must be
seen by its clients and by nobody else, so each daemon has its own folder in that place, in its own mount
namespace. That takes CAP_SYS_ADMIN. Where it cannot be done, the program is not started: it would meet
clients nowhere.
"""

import ctypes
import os
import sys
from pathlib import Path

from gpu_orchestrator.adapters import keeper
from gpu_orchestrator.api import mps

SHM = "/dev/shm"  # noqa: S108 - where processes of CUDA meet, not a temporary file
CLONE_NEWNS = 0x00020000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
COULD_NOT_RUN = 126


def command(folder: Path) -> tuple[str, ...]:
    """Return what to put before a program, so that it has this folder as /dev/shm."""
    return tuple(keeper.command(__name__, str(folder)))


def main() -> None:
    folder, *program = sys.argv[1:]
    try:
        _replace_shm(folder)
        os.execvp(program[0], program)  # noqa: S606  (a list, and no shell)
    except OSError as error:
        _leave_word(f"{error}\n")
        sys.exit(COULD_NOT_RUN)


def _replace_shm(folder: str) -> None:
    _call("unshare", "unshare(CLONE_NEWNS) for a /dev/shm of its own", CLONE_NEWNS)
    _call("mount", "making mounts our own", b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_SLAVE), None)
    shm = SHM.encode()
    _call("mount", f"mounting {folder} at {SHM}", folder.encode(), shm, None, ctypes.c_ulong(MS_BIND), None)


def _call(name: str, what: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _leave_word(text: str) -> None:
    """Write why where the daemon writes its log, which `adapters/mps` reads."""
    if logs := os.environ.get(mps.LOGS):
        (Path(logs) / "control.log").write_text(text)


if __name__ == "__main__":
    main()
