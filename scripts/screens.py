"""Write docs/screens.md: the main screens as a terminal of 110, 80 and 60 columns shows them.

Starts a cluster manager of its own with simulated GPUs, gives it tasks that run, wait and fail, and types
each command into a terminal (a pty) of each width. `make screens` runs it.
"""

# ruff: noqa: TID251, T201 - a script, outside the pure packages

import argparse
import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.text import Text

from controlplane.cluster import free_port

ROOT = Path(__file__).parents[1]
COMMAND = Path(sys.executable).with_name("gpu-orchestrator")
WIDTHS = (110, 80, 60)
HEIGHT = 40
START_S, END_S, STILL_S = 60.0, 30.0, 4.0
REDRAW = re.compile(rb"(?:\r?\x1b\[2K|\x1b\[1A)+")
"""What the live view sends before it draws itself again."""
PRIVATE = (
    (re.compile(r"gpo_[0-9a-f]{64}"), "gpo_" + 8 * "01234567"),
    (re.compile(r"/\S*/(?:live-\d+|served)(?=/)"), "~"),
    (re.compile(r"Linux \S+"), "Linux 6.8"),
)
TASKS = (
    ("echo", '{"hello": "world"}', "--gpus", "0", "--label", "team=search"),
    ("sleep", '{"seconds": 300, "progress": true}', "--gpus", "2", "--label", "team=search"),
    ("sleep", '{"seconds": 300}', "--memory", "8GB", "--priority", "high"),
    ("sleep", '{"seconds": "soon"}', "--retries", "0"),
    ("sleep", '{"seconds": 300}', "--gpus", "4"),
)
RUNNING, FAILED, WAITING = 1, 3, 4
SCREENS = (
    ("All commands", ("--help",)),
    ("The cluster", ("status",)),
    ("Workers", ("worker", "list")),
    ("One worker", ("worker", "show", "{worker}")),
    ("Tasks", ("task", "list")),
    ("Tasks with all columns", ("task", "list", "--wide")),
    ("A task that runs", ("task", "get", "{running}")),
    ("What it prints", ("task", "logs", "{running}", "--tail", "3")),
    ("A task that failed", ("task", "get", "{failed}")),
    ("Why a task waits", ("task", "explain", "{waiting}")),
    ("Keys", ("key", "list")),
    ("Who did what", ("audit", "--limit", "5")),
    ("What happened", ("events", "--limit", "5")),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "screens.md")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        options.to.write_text(document(options.widths, Path(home)))
    print(f"wrote {options.to}")


def document(widths: list[int], home: Path) -> str:
    head = "# Screens\n\nWritten by `make screens`: the same screens at " + _listed(widths) + " columns.\n"
    live = {width: live_view(home / f"live-{width}", width) for width in widths}
    parts = [head, _section("`gpu-orchestrator up --simulate 4`", live)]
    with server(home / "served") as env:
        names = _submit(env)
        for title, words in SCREENS:
            filled = [word.format(**names) for word in words]
            typed = " ".join(["gpu-orchestrator", *filled])
            shown = {width: capture(filled, env, width) for width in widths}
            parts.append(_section(f"{title}: `{typed}`", shown))
            print(title, file=sys.stderr)
    return "\n".join(parts)


def _listed(widths: list[int]) -> str:
    *some, last = map(str, widths)
    return f"{', '.join(some)} and {last}" if some else last


def _section(title: str, shown: dict[int, str]) -> str:
    blocks = [f"{width} columns:\n\n```text\n{text}\n```\n" for width, text in shown.items()]
    return "\n".join([f"## {title}\n", *blocks])


def environment(home: Path) -> dict[str, str]:
    path = f"{COMMAND.parent}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(home), "TERM": "xterm-256color", "PYTHONUTF8": "1"}


@contextmanager
def server(home: Path) -> Iterator[dict[str, str]]:
    """Run `up` without a live view; yield the environment in which the commands find it."""
    home.mkdir()
    env = environment(home)
    command = [str(COMMAND), "up", "--quiet", "--simulate", "4", "--port", str(free_port())]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stdout or ():
                if "Ctrl-C" in line:
                    break
            _until_joined(env)
            yield env
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(END_S)


def _until_joined(env: dict[str, str]) -> None:
    until = time.monotonic() + START_S
    while "online" not in _run(["worker", "list"], env):
        if time.monotonic() > until:
            sys.exit("the worker did not join")
        time.sleep(0.2)


def _submit(env: dict[str, str]) -> dict[str, str]:
    """Submit the tasks; return the names that the commands need."""
    ids = []
    for words in TASKS:
        ids.append(_run(["task", "submit", "-q", *words], env).strip())
        time.sleep(0.5)  # one after the other, so that the first ones get the devices
    worker = socket.gethostname()
    time.sleep(2.5)  # until the second one has printed something
    return {"running": ids[RUNNING], "failed": ids[FAILED], "waiting": ids[WAITING], "worker": worker}


def _run(words: list[str], env: dict[str, str]) -> str:
    return subprocess.run([COMMAND, *words], env=env, capture_output=True, text=True, check=True).stdout


def live_view(home: Path, width: int) -> str:
    """Return what `up` shows some seconds after its start: the text before the live view, and its last
    state."""
    home.mkdir()
    words = ["up", "--simulate", "4", "--port", str(free_port())]
    raw = _type(words, environment(home), width, for_s=STILL_S)
    first = REDRAW.search(raw)
    if not first:
        return _plain(raw)
    before = raw[: first.start()]
    start = before.rfind(b"\x1b[?25l")  # hides the cursor: here the live view begins
    return _plain(before[:start] + REDRAW.split(raw)[-1])


def capture(words: list[str], env: dict[str, str], width: int) -> str:
    return _plain(_type(words, env, width))


def _plain(raw: bytes) -> str:
    """Return the text that was shown, without what belongs to one machine or must not be shown around."""
    text = Text.from_ansi(raw.decode(errors="replace").replace("\r\n", "\n")).plain
    for pattern, instead in PRIVATE:
        text = pattern.sub(instead, text)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def _type(words: list[str], env: dict[str, str], width: int, for_s: float | None = None) -> bytes:
    """Run a command in a terminal; return all it sent. With `for_s`, count that long from the first tasks
    that ended, then press Ctrl-C."""
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, width, 0, 0))
        os.execve(COMMAND, [str(COMMAND), *words], env)  # noqa: S606 - no shell
    try:
        return _read(terminal, child, for_s)
    finally:
        os.close(terminal)
        os.waitpid(child, 0)


def _read(terminal: int, child: int, for_s: float | None) -> bytes:
    raw, until, taken = b"", time.monotonic() + START_S, b""
    while True:
        ready, _, _ = select.select([terminal], [], [], 0.1)
        try:
            raw += os.read(terminal, 65536) if ready else b""
        except OSError:  # the command has ended
            return taken or raw
        if for_s is not None and not taken and (b"completed" in raw or time.monotonic() > until):
            until, for_s = time.monotonic() + for_s, None
        elif for_s is None and not taken and time.monotonic() > until:
            taken = raw
            os.kill(child, signal.SIGINT)


if __name__ == "__main__":
    main()
