"""The pictures of `make run` and `make demo` show what a terminal showed, and nothing of the machine."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts.recordings import __main__ as recordings
from scripts.recordings.drawing import Moment, svg
from scripts.recordings.terminal import PLAIN, Row, Style, Terminal
from tests.support.paths import ROOT

LARGEST_KIB = 64
SVG = "{http://www.w3.org/2000/svg}"


def row(text: str) -> Row:
    return ((PLAIN, text),)


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        pytest.param("a\r\nb", ["a", "b"], id="lines"),
        pytest.param("abc\rX", ["Xbc"], id="carriage return"),
        pytest.param("one\r\ntwo\r\x1b[2K\x1b[1A\x1b[2Knew", ["new"], id="live view drawn again"),
        pytest.param("abcd\r\x1b[2Ab\x1b[K", ["b"], id="rest of the line erased"),
        pytest.param("1234567", ["12345", "67"], id="line that is too long"),
        pytest.param("12345\r\n67", ["12345", "67"], id="line of full width"),
        pytest.param("a\r\nb\r\nc\r\nd", ["c", "d"], id="only what fits the screen"),
        pytest.param("\x1b]8;;x\x1b\\a\x1b[?25l\x1b[?25h", ["a"], id="what shows nothing"),
    ],
)
def test_terminal_shows(sent: str, shown: list[str]) -> None:
    terminal = Terminal(width=5, height=2)
    terminal.feed(sent)
    printed = ["".join(text for _, text in row) for row in terminal.shown()]
    assert [text for text in printed if text] == shown


def test_terminal_reads_a_sequence_that_comes_in_two_parts() -> None:
    terminal = Terminal(width=9, height=1)
    for part in ("\x1b[3", "2;1mgreen\x1b", "[0m!"):
        terminal.feed(part)
    assert terminal.shown() == [((Style(colour=2, bold=True), "green"), (PLAIN, "!"))]


def test_unknown_sequence_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not know"):
        Terminal(width=9, height=1).feed("\x1b[5S")


def test_row_that_stays_is_drawn_once() -> None:
    moments = [
        Moment(0.0, [row("$ make run")]),
        Moment(1.0, [row("$ make run"), row("1 queued")]),
        Moment(2.0, [row("$ make run"), row("1 <done>")]),
    ]
    picture = ElementTree.fromstring(svg(moments, title="make run", width=20, height=2, rest_s=2.0))
    drawn = [text.text for group in picture.iter(f"{SVG}g") for text in group.iter(f"{SVG}text")]
    assert sorted(map(str, drawn)) == ["$ make run", "1 <done>", "1 queued"]
    style = picture.findtext(f"{SVG}style") or ""
    assert "0%{visibility:hidden}25.000%{visibility:visible}50.000%{visibility:hidden}" in style


def test_long_pauses_are_shortened_and_short_ones_are_one_moment() -> None:
    given = [Moment(at_s, [row(str(at_s))]) for at_s in (0.0, 60.0, 60.01, 60.02, 61.0)]
    kept = [(each.at_s, each.rows[0][0][1]) for each in recordings.shortened(iter(given))]
    pause = recordings.LONGEST_PAUSE_S + recordings.TYPED_S
    assert kept == [(0.0, "0.0"), (pause, "60.02"), (pytest.approx(pause + 1, abs=0.02), "61.0")]


def check(picture: Path) -> str:
    text = picture.read_text()
    assert len(text) < LARGEST_KIB * 1024
    ElementTree.fromstring(text)
    assert not re.search(r"gpo_(?!0123456701234567)|/root/|/home/|/Users/|<script|href", text)
    return text


@pytest.mark.parametrize("name", ["run", "demo"])
def test_picture_is_small_and_tells_nothing_of_the_machine(name: str) -> None:
    text = check(ROOT / "docs" / f"{name}.svg")
    assert f"make {name}" in text
    assert {"run": "1 worker; 8 completed", "demo": ">Succeeded<"}[name] in text


@pytest.mark.real
def test_recording_of_make_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scripts.recordings", "--only", "run", "--to", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=240)
    text = check(tmp_path / "run.svg")
    assert "sample-1" in text
    assert "1 worker; 8 completed" in text
