"""Random command lines against one real server, in odd surroundings: no traceback, a known exit code, and a
message if it failed.

`make test` runs 200: 24 in processes of their own, where locale, pipes and the end of the interpreter are
real, and 176 in this process, which costs a tenth. `make accept` runs 2,000, all in processes of their own.
"""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pytest

from controlplane.cluster import free_port
from tests.support import command_lines
from tests.support.command_line import COMMAND, User, in_this_process, serving
from tests.support.scale import Scale

pytestmark = pytest.mark.real
CODES = {0, 1, 2, 130}
SURROUNDINGS: tuple[dict[str, str], ...] = (
    {},
    {"LC_ALL": "POSIX", "PYTHONUTF8": "0"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"COLUMNS": "1", "TERM": "dumb"},
    {"NO_COLOR": "1", "COLUMNS": "many"},
    {"API_KEY": "wrong"},
    {"API_KEY": "wröng"},
    {"GPU_ORCHESTRATOR_URL": "UNREACHABLE"},
    {"GPU_ORCHESTRATOR_URL": "nonsense"},
    {"XDG_CONFIG_HOME": "/dev/null"},
    {"DATA_DIR": "/dev/null"},
    {"HOME": ""},
)
ENDS = ("read", "closed pipe", "read", "nowhere", "read")
SEEDS, SPAWNED, INSIDE = 4, 6, 44


@dataclass(frozen=True, slots=True)
class Line:
    """A command line, with what its environment has in particular, and what becomes of its stdout: somebody
    reads it, the reader is gone, or there never was one."""

    words: list[str]
    surroundings: dict[str, str]
    end: str

    def environ(self, user: User) -> dict[str, str]:
        unreachable = f"http://127.0.0.1:{free_port()}"
        own = {name: value.replace("UNREACHABLE", unreachable) for name, value in self.surroundings.items()}
        return {**user.environ, **own}


def spawned(seed: int, count: int) -> list[Line]:
    """Return lines for processes of their own. The seeds together have every surrounding and every end."""
    turns = range(seed * count, (seed + 1) * count)
    return [
        Line(words, SURROUNDINGS[turn % len(SURROUNDINGS)], ENDS[turn % len(ENDS)])
        for turn, words in zip(turns, command_lines.lines(seed, count), strict=True)
    ]


def inside(seed: int, count: int) -> list[Line]:
    rng = Random(seed)
    return [
        Line(words, rng.choice(SURROUNDINGS), rng.choice(ENDS[:3]))
        for words in command_lines.lines(SEEDS + seed, count)
    ]


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    with serving(tmp_path_factory.mktemp("fuzz")) as running:
        yield running


def test_make_test_runs_as_many_as_promised() -> None:
    assert SEEDS * (SPAWNED + INSIDE) == 200
    together = [line for seed in range(SEEDS) for line in spawned(seed, SPAWNED)]
    assert all(sum(line.surroundings == each for line in together) == 2 for each in SURROUNDINGS)
    assert {line.end for line in together if "LC_ALL" in line.surroundings} == set(ENDS)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_command_line_ends_in_a_traceback(user: User, scale: Scale, seed: int) -> None:
    outcomes = [(line, *spawn(user, line)) for line in spawned(seed, scale(test=SPAWNED, accept=500))]
    outcomes += [(line, *call(user, line)) for line in inside(seed, scale(test=INSIDE, accept=0))]
    wrong = [f"{line}: {told}" for line, code, said in outcomes if (told := complaint(line, code, said))]
    assert not wrong, "\n".join(wrong)


def complaint(line: Line, code: int, said: str) -> str:
    """Return what is wrong with how a command line ended; empty if nothing is."""
    if "Traceback" in said or "Exception ignored" in said:
        return said
    if code not in CODES:
        return f"ended with {code}: {said}"
    if code and not said.strip() and line.end == "read":
        return f"ended with {code} and no message"
    return ""


def call(user: User, line: Line) -> tuple[int, str]:
    """Run it in this process; return exit code and stderr."""
    encoding = "ascii" if "LC_ALL" in line.surroundings else "utf-8"
    if line.end == "read":
        done = in_this_process(line.words, user.folder, line.environ(user), encoding=encoding)
    else:
        read, write = os.pipe()
        os.close(read)
        with open(write, "wb", closefd=False) as stdout:
            done = in_this_process(
                line.words, user.folder, line.environ(user), encoding=encoding, stdout=stdout
            )
        os.close(write)
    return done.returncode, done.stderr


def spawn(user: User, line: Line) -> tuple[int, str]:
    """Run it in a process of its own; return exit code and stderr."""
    read, write = os.pipe()
    if line.end == "closed pipe":
        os.close(read)
    process = subprocess.Popen(
        [*(("bash", "-c", 'exec "$0" "$@" >&-') if line.end == "nowhere" else ()), COMMAND, *line.words],
        cwd=user.folder,
        env=line.environ(user),
        stdin=subprocess.DEVNULL,
        stdout=write if line.end == "closed pipe" else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    try:
        said = process.communicate(timeout=120)[1]
    finally:
        process.kill()
        if line.end != "closed pipe":
            os.close(read)
    return process.returncode, said.decode(errors="replace")
