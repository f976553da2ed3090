"""What other processes may do to this one, and the user that a process runs as (Linux).

Imports little: every runner's keeper loads it.
"""

import ctypes
import os
import pwd
from dataclasses import dataclass

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38
_libc = ctypes.CDLL(None, use_errno=True)


class UnknownUser(ValueError):
    """There is no such user, or this process may not become it."""


@dataclass(frozen=True, slots=True)
class User:
    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    def environment(self) -> dict[str, str]:
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}

    def encode(self) -> str:
        """Return the user as one word, for the command line of a keeper."""
        return f"{self.uid}:{self.gid}:{','.join(map(str, self.groups))}"


def find(name: str) -> User:
    """Return the user of this name, with all of its groups. Raise `UnknownUser` if tasks cannot run as it."""
    if os.geteuid() != 0:
        raise UnknownUser(f"--run-as {name} needs root; start the worker as root, or as {name}")
    try:
        entry = pwd.getpwnam(name)
    except KeyError as error:
        raise UnknownUser(f"--run-as {name}: there is no such user here; create it with useradd") from error
    if entry.pw_uid == 0:
        raise UnknownUser(f"--run-as {name} is root, who can read everything; give a user without rights")
    groups = os.getgrouplist(name, entry.pw_gid)
    return User(name, entry.pw_uid, entry.pw_gid, tuple(groups), entry.pw_dir)


def become(encoded: str) -> None:
    """Become the user for good, in a child of root. No program that it starts can gain rights again."""
    uid, gid, groups = encoded.split(":")
    os.setgroups([int(each) for each in groups.split(",") if each])
    os.setresgid(int(gid), int(gid), int(gid))
    os.setresuid(int(uid), int(uid), int(uid))
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    _prctl(PR_SET_DUMPABLE, 1)  # a change of user takes it away, and with it /proc/self/fd and the like


def hide() -> None:
    """Keep other processes of this user from reading this process's memory and environment, and from tracing
    it. Root can still do so. Programs that this process starts are not hidden."""
    _prctl(PR_SET_DUMPABLE, 0)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")
