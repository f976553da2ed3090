"""Random command lines against one real server, in odd surroundings: no traceback, a known exit code, and a
message if it failed."""

import os
import subprocess
from collections.abc import Iterator
from random import Random

import pytest

from controlplane.cluster import free_port
from tests.support import command_lines
from tests.support.command_line import COMMAND, User, serving
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
ENDS = ("read", "read", "read", "closed pipe", "nowhere")


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    with serving(tmp_path_factory.mktemp("fuzz")) as running:
        yield running


@pytest.mark.parametrize("seed", range(4))
def test_no_command_line_ends_in_a_traceback(user: User, scale: Scale, seed: int) -> None:
    rng = Random(seed)
    lines = command_lines.lines(seed, scale(test=12, accept=500))
    chosen = [(words, rng.choice(SURROUNDINGS), rng.choice(ENDS)) for words in lines]
    wrong = [told for each in chosen if (told := complaint(user, *each))]
    assert not wrong, "\n".join(wrong)


def complaint(user: User, words: list[str], surroundings: dict[str, str], end: str) -> str:
    """Run one command line and return what is wrong with how it ended; empty if nothing is."""
    code, told = outcome(user, words, surroundings, end)
    if "Traceback" in told or "Exception ignored" in told:
        return f"{words} {surroundings} {end}: {told}"
    if code not in CODES:
        return f"{words} {surroundings} {end}: ended with {code}: {told}"
    if code and not told.strip() and end == "read":
        return f"{words} {surroundings} {end}: ended with {code} and no message"
    return ""


def outcome(user: User, words: list[str], surroundings: dict[str, str], end: str) -> tuple[int, str]:
    """Return exit code and stderr. The reader of stdout reads it, is gone, or never was."""
    unreachable = f"http://127.0.0.1:{free_port()}"
    environ = {**user.environ, **{n: v.replace("UNREACHABLE", unreachable) for n, v in surroundings.items()}}
    read, write = os.pipe()
    if end == "closed pipe":
        os.close(read)
    process = subprocess.Popen(
        [*(("bash", "-c", 'exec "$0" "$@" >&-') if end == "nowhere" else ()), COMMAND, *words],
        cwd=user.folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=write if end == "closed pipe" else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    try:
        told = process.communicate(timeout=120)[1]
    finally:
        process.kill()
        if end != "closed pipe":
            os.close(read)
    return process.returncode, told.decode(errors="replace")
