"""Tables on any terminal: ids stay whole, columns go whole, and without a terminal nothing is left out."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.cli.tables import Column, Page, card, cell_width, shortened, state_colour, table

ID = "3f2a" * 8
COLUMNS = (
    Column("TASK"),
    Column("STATUS", paint=state_colour),
    Column("TYPE", 2),
    Column("WORKER", 4),
    Column("AGE", 1),
    Column("REASON", 3, free=True),
)
ROW = (ID, "queued", "finetune", "gpu-box-17", "3m", "0/12 workers fit: 7 have fewer than 4 free GPUs")


def heads(width: int | None) -> list[str]:
    return table(COLUMNS, [ROW], Page(width))[0].split()


@pytest.mark.parametrize(
    ("width", "kept"),
    [
        (None, ["TASK", "STATUS", "TYPE", "WORKER", "AGE", "REASON"]),
        (110, ["TASK", "STATUS", "TYPE", "WORKER", "AGE", "REASON"]),
        (80, ["TASK", "STATUS", "TYPE", "AGE", "REASON"]),
        (60, ["TASK", "STATUS", "TYPE", "AGE"]),
        (45, ["TASK", "STATUS", "AGE"]),
        (20, ["TASK", "STATUS"]),
    ],
)
def test_least_important_columns_go_first(width: int | None, kept: list[str]) -> None:
    assert heads(width) == kept


def test_free_text_is_shortened_to_the_width() -> None:
    _, row = table(COLUMNS, [ROW], Page(110))
    assert cell_width(row) <= 110
    assert row.startswith(ID)
    assert row.endswith("…")


BELOW = (
    Column("TASK"),
    Column("STATUS"),
    Column("AGE", 1),
    Column("OWNER", 8, below=True),
    Column("LABELS", 8, below=True),
    Column("REASON", 3, free=True, below=True),
)
WAITS = (
    ID,
    "queued",
    "3m",
    "ann",
    "",
    "7 are offline, 5 have fewer than 4 free GPUs, 1 has no wholly free GPU",
)


def test_what_explains_a_row_goes_below_it_where_there_is_no_room() -> None:
    assert table(BELOW, [WAITS, (ID, "running", "4m", "", "", "")], Page(60)) == [
        f"{'TASK':<32}  STATUS   AGE",
        f"{ID}  queued   3m",
        "    owner ann",
        "    7 are offline, 5 have fewer than 4 free GPUs, 1 has no",
        "    wholly free GPU",
        f"{ID}  running  4m",
    ]


@pytest.mark.parametrize("page", [Page(), Page(200)], ids=["pipe", "wide"])
def test_row_has_one_line_where_nothing_goes_below(page: Page) -> None:
    assert len(table(BELOW, [WAITS, WAITS], page)) == 3


def test_pipe_gets_everything_without_colour() -> None:
    head, row = table(COLUMNS, [ROW], Page())
    assert ROW[-1] in row
    assert row.split("  ")[0] == ID
    assert "\x1b" not in head + row


def test_state_is_coloured_on_a_terminal_without_moving_columns() -> None:
    plain = table(COLUMNS, [ROW], Page(200))
    coloured = table(COLUMNS, [ROW], Page(200, colour=True))
    assert "\x1b[33mqueued\x1b[0m" in coloured[1]
    assert [re.sub(r"\x1b\[\d+m", "", line) for line in coloured] == plain


@pytest.mark.parametrize(
    ("word", "colour"),
    [("completed", "green"), ("running", "cyan"), ("failed", "red"), ("queued", "yellow"), ("odd", "")],
)
def test_states_have_their_colour(word: str, colour: str) -> None:
    assert state_colour(word) == colour


@pytest.mark.parametrize(
    ("words", "width", "shown"),
    [
        ("short", 10, "short"),
        ("a longer one", 8, "a longe…"),
        ("日本語です", 6, "日本…"),
        ("end here", 5, "end…"),
    ],
)
def test_text_is_shortened_by_its_width(words: str, width: int, shown: str) -> None:
    assert shortened(words, width) == shown


@pytest.mark.parametrize(
    "words",
    ["[/x]", "[red]not red[/red]", "\x1b[2J\x1b]0;a title\x07", "two\r\nlines", "a\ttab", "\u202eturned"],
)
def test_foreign_text_is_one_line_without_control_characters(words: str) -> None:
    _, shown = table([Column("OBJECT")], [[words]])
    assert shown == words.encode("unicode_escape").decode()


def test_card_leaves_out_what_is_missing_and_indents_lines() -> None:
    assert card([("task", ID), ("worker", None), ("labels", {}), ("result", '{\n  "a": 1\n}')]) == [
        f"task    {ID}",
        "result  {",
        '          "a": 1',
        "        }",
    ]


def test_card_breaks_a_long_sentence_on_a_terminal_only() -> None:
    sentence = ("reason", "one two three four five six seven")
    assert card([sentence], Page(30)) == ["reason  one two three four", "        five six seven"]
    assert card([sentence]) == ["reason  one two three four five six seven"]


@given(
    rows=st.lists(st.tuples(st.text(max_size=50), st.text(max_size=20), st.text(max_size=200)), max_size=5),
    width=st.integers(1, 200),
)
def test_row_is_wider_than_the_terminal_only_if_nothing_can_be_dropped(
    rows: list[tuple[str, str, str]], width: int
) -> None:
    columns = (Column("ID"), Column("TYPE", 1), Column("WHY", 2, free=True))
    for line in table(columns, rows, Page(width)):
        assert line.isprintable()
        assert cell_width(line) <= width or "  " not in line.rstrip() or not line.startswith("ID")
