"""The live view of `up`, as a table of lines: readable at every width, and no id is cut."""

from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from gpu_orchestrator.adapters.store.tasks import Counts
from gpu_orchestrator.cli.own_worker import problem, words
from gpu_orchestrator.cli.view import Line, clock, in_short, shared, summary, table
from gpu_orchestrator.core.answer import Refusal

LONG = "caecc98c9aacbf08a4614a57312f6f2e"
REASON = "1 has no wholly free GPU"
LINES = [
    Line(LONG, "running", "3m05s", "training", "GPU 0,1 on gpu-box"),
    Line("sample-1", "queued", "", "echo", REASON),
    Line("0" * 32, "failed", "2.0s", "python", "no such file: " + "x" * 200),
]


def drawn(width: int) -> list[str]:
    return [line.plain for line in table(LINES, width, 12)]


@pytest.mark.parametrize("width", [60, 80, 110])
def test_view_is_readable_at_every_width(width: int) -> None:
    shown = drawn(width)
    text = "\n".join(shown)
    assert all(cell_len(line) <= width for line in shown)
    assert {line.name for line in LINES} <= set(text.split()), "ids are whole"
    assert {"GPU 0,1 on gpu-box", REASON} <= {
        part for line in shown for part in (line.strip(), line.split("  ")[-1].strip())
    }
    assert "3m05s" in text


def test_wide_view_has_types_and_one_line_for_each_task() -> None:
    assert len(drawn(110)) == 1 + len(LINES)
    assert "training" in "\n".join(drawn(110))


def test_narrow_view_moves_details_to_lines_of_their_own() -> None:
    assert f"    {REASON}" in drawn(60)


def test_states_have_colours() -> None:
    styles = {str(span.style) for line in table(LINES, 110, 12) for span in line.spans}
    assert {"cyan", "yellow", "red"} <= styles


def test_control_characters_are_shown_not_sent() -> None:
    (_, row) = table([Line("a", "failed", "", "echo", "\x1b[2J")], 80, 12)
    assert "\x1b" not in row.plain


@pytest.mark.parametrize(
    ("running", "queued", "ended", "expected"),
    [
        pytest.param("ab", "", "xyz", "abxyz", id="all fit"),
        pytest.param("abcdefghij", "q", "x", "abcdefqx", id="many run"),
        pytest.param("", "qrstuvwxyz", "123", "qrstuv12", id="a long queue"),
        pytest.param("", "", "0123456789", "01234567", id="nothing to do"),
    ],
)
def test_rows_are_shared_between_running_waiting_and_ended(
    running: str, queued: str, ended: str, expected: str
) -> None:
    assert "".join(shared([list(running), list(queued), list(ended)], 8)) == expected


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.04, "0.0s"), (9.9, "9.9s"), (9.96, "9s"), (59.9, "59s"), (185, "3m05s"), (7620, "2h07m")],
)
def test_durations_are_short(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ({"queued": 0}, "1 worker; no tasks yet"),
        ({"queued": 2, "running": 1}, "1 worker; 2 queued, 1 running"),
    ],
)
def test_summary_counts(states: dict[str, int], said: str) -> None:
    assert summary(Counts(0, states, {}, ("w",), ""), 1).plain == said


@pytest.mark.parametrize(("online", "said"), [(3, "3 workers; "), (1, "1 of 3 workers online; ")])
def test_summary_says_who_is_offline(online: int, said: str) -> None:
    assert summary(Counts(0, {}, {}, ("a", "b", "c"), ""), online).plain == f"{said}no tasks yet"


def test_reason_is_told_in_the_words_of_lists() -> None:
    refusal = Refusal(3, (("not ready", 2), ("have no GPU of 20480 MiB", 1)))
    assert in_short(refusal) == "2 are offline, 1 has no GPU of 20GB"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("gpu-orchestrator worker: no token", "no token"),
        ("ModuleNotFoundError: No module named 'x'", "ModuleNotFoundError: No module named 'x'"),
        ('{"message": "not connected yet", "why": "no answer"}', "not connected yet: no answer"),
        ('{"message": "worker ends"}', "worker ends"),
        ("[]", "[]"),
    ],
)
def test_last_line_of_the_worker_is_for_people(line: str, said: Any) -> None:
    assert words(line) == said


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (1, "the worker ended: no route; it starts again in 2 s; its log is /x"),
        (-9, "the worker ended: killed by signal 9; it starts again in 2 s; its log is /x"),
        (2, "the worker cannot start: no route; press Ctrl-C, correct it and start again"),
        (0, ""),
    ],
)
def test_end_of_the_worker_is_told_by_its_last_line_or_its_signal(status: int, said: str) -> None:
    assert problem(status, "no route", 2, Path("/x")) == said
