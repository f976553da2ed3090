"""Record `make run` and `make demo`, as a person sees them, for the README: `make recordings`.

Each runs in a terminal (a pty) of its own. Pauses are shortened, so a cluster that takes ten seconds to
start takes two in the picture. Keys and folders of this machine are replaced.
"""

# ruff: noqa: T201, TID251 - a script, outside the pure packages

import argparse
import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.cluster import free_port
from scripts.recordings.drawing import Moment, svg
from scripts.recordings.terminal import Row, Style, Terminal

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
LONGEST_PAUSE_S = 1.5
SHORTEST_S = 0.12
"""Changes that come closer together are shown as one."""
GIVE_UP_S, END_S = 240.0, 60.0
TYPED_S, QUIET_S = 0.6, 0.03
PROMPT = Style(colour=8)
PRIVATE = (
    (re.compile(r"gpo_[0-9a-f]{64}"), "gpo_" + 8 * "01234567"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:8000"),
    (re.compile(rf"{re.escape(str(ROOT))}/"), ""),
    (re.compile(r"/\S*/(?=\.cache/|\.local/)"), "~/"),
    (re.compile(r"/gpu-orchestrator-[\w-]+"), "/gpu-orchestrator-demo"),
)


@dataclass(frozen=True, slots=True)
class Recording:
    """A command, and what it must have shown before it is ended. `typed` is what stands at the prompt."""

    name: str
    typed: str
    command: Sequence[str]
    until: re.Pattern[str]
    width: int
    height: int


def recordings(nodes: int) -> tuple[Recording, ...]:
    up = (str(BIN / "gpu-orchestrator"), "up", "--simulate", "4", "--port", str(free_port()))
    demo = (sys.executable, "scripts/demo.py", "--nodes", str(nodes))
    return (
        Recording("run", "make run", up, re.compile(r"8 completed"), 101, 23),
        Recording("demo", "make demo", demo, re.compile(r"(?:.*Succeeded.*\n){4}"), 110, 41),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "docs")
    parser.add_argument("--only", choices=("run", "demo"))
    parser.add_argument("--nodes", type=int, default=20)
    options = parser.parse_args()
    for each in recordings(options.nodes):
        if options.only in (None, each.name):
            file = options.to / f"{each.name}.svg"
            file.write_text(picture(each))
            print(f"{file} ({file.stat().st_size / 1024:.0f} KiB)")


def picture(recording: Recording) -> str:
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "TERM": "xterm-256color", "PYTHONUTF8": "1", "COLORTERM": ""}
        if recording.name == "run":
            env["HOME"] = home
        moments = list(shortened(watched(recording, env)))
    return svg(moments, title=recording.typed, width=recording.width, height=recording.height)


def watched(recording: Recording, env: dict[str, str]) -> Iterator[Moment]:
    """Run the command in a terminal; yield what it shows, and end it when it has shown enough."""
    child, terminal = pty.fork()
    if child == 0:
        size = struct.pack("HHHH", recording.height - 1, recording.width, 0, 0)
        fcntl.ioctl(1, termios.TIOCSWINSZ, size)
        os.chdir(ROOT)
        os.execve(recording.command[0], list(recording.command), env)  # noqa: S606 - no shell
    try:
        yield from _moments(recording, terminal)
    finally:
        os.kill(child, signal.SIGINT)
        _drain(terminal)
        os.close(terminal)
        os.waitpid(child, 0)


def _moments(recording: Recording, terminal: int) -> Iterator[Moment]:
    shown = Terminal(recording.width, recording.height - 1)
    prompt: Row = ((PROMPT, "$ "), (Style(bold=True), recording.typed))
    yield Moment(0.0, [prompt])
    start = time.monotonic()
    decoder = codecs.getincrementaldecoder("utf-8")()
    while time.monotonic() < start + GIVE_UP_S:
        try:
            shown.feed(decoder.decode(_burst(terminal)))
        except OSError:
            sys.exit(f"{recording.typed} ended by itself:\n{_text(shown.shown())}")
        rows = [_public(row) for row in shown.shown()]
        yield Moment(time.monotonic() - start, [prompt, *rows][-recording.height :])
        if recording.until.search(_text(rows)):
            return
    sys.exit(f"{recording.typed} did not show {recording.until.pattern!r}:\n{_text(shown.shown())}")


def _burst(terminal: int) -> bytes:
    """Return all that is sent at once, so that no view is shown half drawn; raise OSError at the end."""
    received, patience_s = b"", GIVE_UP_S
    while select.select([terminal], [], [], patience_s)[0]:
        received += os.read(terminal, 65536)
        patience_s = QUIET_S
    return received


def shortened(moments: Iterator[Moment]) -> Iterator[Moment]:
    """Yield the moments with no long pause between them, and none that is too short to be seen."""
    last, now_s, kept = 0.0, 0.0, None
    for moment in moments:
        now_s += min(moment.at_s - last, LONGEST_PAUSE_S)
        last = moment.at_s
        if kept is not None and now_s - kept.at_s >= SHORTEST_S:
            yield kept
            kept = None
        kept = Moment(kept.at_s if kept else round(now_s + TYPED_S * bool(moment.at_s), 2), moment.rows)
    if kept:
        yield kept


def _public(row: Row) -> Row:
    """Return the row without what belongs to one machine or must not be shown around."""
    changed = []
    for style, text in row:
        for pattern, instead in PRIVATE:
            text = pattern.sub(instead, text)
        changed.append((style, text))
    return tuple(changed)


def _text(rows: Sequence[Row]) -> str:
    return "".join("".join(text for _, text in row) + "\n" for row in rows)


def _drain(terminal: int) -> None:
    """Read what the program still says, or it would wait for a reader."""
    until = time.monotonic() + END_S
    while time.monotonic() < until:
        ready, _, _ = select.select([terminal], [], [], 0.1)
        try:
            if ready and not os.read(terminal, 65536):
                return
        except OSError:
            return


if __name__ == "__main__":
    main()
