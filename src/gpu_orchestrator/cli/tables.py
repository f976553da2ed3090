"""Lay out tables and cards as lines of text. Pure: width and colour come in as arguments.

In a table that is too wide for its terminal, what explains a row goes to lines of its own below it. Then
whole columns go, the least important first, and free text may end with `…`. Ids are never cut. Without a
terminal nothing is left out.
"""

import textwrap
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpu_orchestrator.cli.plain import visible

GAP = "  "
NOTHING = "-"
LEAST, ROOMY = 20, 40
"""A column of free text is dropped rather than shortened to less than `LEAST`; one that can go below does so
rather than have less than `ROOMY`."""
INDENT = "    "
COLOURS = {"green": "32", "cyan": "36", "red": "31", "yellow": "33", "bold": "1", "dim": "2"}
STATES = {
    **dict.fromkeys(("completed", "healthy", "online", "active", "done", "ok"), "green"),
    **dict.fromkeys(("running", "assigned", "busy"), "cyan"),
    **dict.fromkeys(
        ("failed", "dead", "offline", "unhealthy", "revoked", "refused", "no workers", "stopped"), "red"
    ),
    **dict.fromkeys(
        (
            "queued",
            "scheduled",
            "cancelled",
            "cancelling",
            "cordoned",
            "draining",
            "resting",
            "suspect",
            "degraded",
            "expired",
            "paused",
        ),
        "yellow",
    ),
}


@dataclass(frozen=True, slots=True)
class Column:
    """`rank` 0 always stays; of the others the highest is dropped first. `free` may be shortened.
    `below` goes to a line of its own where there is no room."""

    head: str
    rank: int = 0
    free: bool = False
    below: bool = False
    paint: Callable[[str], str] | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Where the text goes: `width` is None if there is no limit."""

    width: int | None = None
    colour: bool = False


PLAIN = Page()


def state_colour(word: str) -> str:
    """Return the colour of a state; empty for one that has none."""
    return STATES.get(word.partition(" ")[0], STATES.get(word, ""))


def table(columns: Sequence[Column], rows: Sequence[Sequence[object]], page: Page = PLAIN) -> list[str]:
    """Return the head and the rows as lines."""
    cells = [[text(each) for each in row] for row in rows]
    widths = [
        max([cell_width(column.head), *(cell_width(row[at]) for row in cells)])
        for at, column in enumerate(columns)
    ]
    kept = _kept(columns, widths, page)
    shown = _fitted(columns, widths, kept, page.width)
    head = _line([columns[at].head for at in kept], [shown[at] for at in kept], ["bold"] * len(kept), page)
    lines = [head]
    for row in cells:
        lines += [_row(columns, row, kept, shown, page), *_below(columns, row, kept, page)]
    return lines


def card(pairs: Sequence[tuple[str, object]], page: Page = PLAIN) -> list[str]:
    """Return fields below each other, without those that have no value; further lines are indented."""
    shown = [(name, str(value)) for name, value in pairs if value not in (None, "", [], {})]
    indent = max((cell_width(name) for name, _ in shown), default=0) + len(GAP)
    lines = []
    for name, value in shown:
        first, *more = wrapped(value, indent, page.width)
        word = visible(first)
        colour = state_colour(word) if name == "status" else ""
        lines.append(
            f"{painted(name, 'bold', page)}{' ' * (indent - cell_width(name))}{painted(word, colour, page)}"
        )
        lines += [" " * indent + visible(line) for line in more]
    return lines


def wrapped(value: str, indent: int, width: int | None) -> list[str]:
    """Return the lines of a value; a long sentence goes on below on a terminal."""
    lines = value.split("\n")
    if len(lines) > 1 or width is None or cell_width(value) <= width - indent or width - indent < LEAST:
        return lines
    return textwrap.wrap(value, width - indent, break_long_words=False, break_on_hyphens=False)


def text(value: object) -> str:
    """Return the text of a cell: one line without tabs, `-` for nothing."""
    if value is None or value == "":
        return NOTHING
    return visible(str(value))


def cell_width(words: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if words.isascii():
        return len(words)
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in words
    )


def shortened(words: str, width: int) -> str:
    """Return the text, ended with `…` if it is wider than this."""
    if cell_width(words) <= width:
        return words
    kept = ""
    for each in words:
        if cell_width(kept + each) > width - 1:
            break
        kept += each
    return kept.rstrip() + "…"


def painted(words: str, colour: str, page: Page) -> str:
    if not page.colour or not colour:
        return words
    return f"\x1b[{COLOURS[colour]}m{words}\x1b[0m"


def _kept(columns: Sequence[Column], widths: Sequence[int], page: Page) -> list[int]:
    """Return which columns fit: without those that can go below, then without the least important."""
    kept = list(range(len(columns)))
    if page.width is None:
        return kept
    if _least(columns, widths, kept, ROOMY) > page.width:
        kept = [at for at in kept if not columns[at].below]
    while _least(columns, widths, kept) > page.width:
        last = max(kept, key=lambda at: (columns[at].rank, at))
        if columns[last].rank == 0:
            break
        kept.remove(last)
    return kept


def _least(columns: Sequence[Column], widths: Sequence[int], kept: Sequence[int], least: int = LEAST) -> int:
    needed = sum(min(widths[at], least) if columns[at].free else widths[at] for at in kept)
    return needed + len(GAP) * (len(kept) - 1)


def _below(columns: Sequence[Column], row: Sequence[str], kept: Sequence[int], page: Page) -> list[str]:
    """Return the lines below a row: fields with their names, then free text."""
    if page.width is None:
        return []
    moved = [
        (column, row[at])
        for at, column in enumerate(columns)
        if column.below and at not in kept and row[at] != NOTHING
    ]
    fields = "; ".join(f"{column.head.lower()} {cell}" for column, cell in moved if not column.free)
    found = [fields, *(cell for column, cell in moved if column.free)]
    width = max(page.width - len(INDENT), LEAST)
    return [
        INDENT + painted(line, "dim", page)
        for each in found
        for line in textwrap.wrap(each, width, break_long_words=False, break_on_hyphens=False)
    ]


def _fitted(
    columns: Sequence[Column], widths: Sequence[int], kept: Sequence[int], width: int | None
) -> dict[int, int]:
    """Return the width of each column; those of free text share what the others leave."""
    shown = {at: widths[at] for at in kept}
    free = [at for at in kept if columns[at].free]
    if width is None or not free:
        return shown
    left = width - sum(shown[at] for at in kept if at not in free) - len(GAP) * (len(kept) - 1)
    for number, at in enumerate(free):
        others = sum(min(widths[each], LEAST) for each in free[number + 1 :])
        shown[at] = max(min(widths[at], left - others), min(widths[at], LEAST))
        left -= shown[at]
    return shown


def _row(
    columns: Sequence[Column], row: Sequence[str], kept: Sequence[int], shown: dict[int, int], page: Page
) -> str:
    words = [shortened(row[at], shown[at]) if columns[at].free else row[at] for at in kept]
    colours = [_colour(columns[at], row[at]) for at in kept]
    return _line(words, [shown[at] for at in kept], colours, page)


def _colour(column: Column, word: str) -> str:
    return column.paint(word) if column.paint else ""


def _line(words: Sequence[str], widths: Sequence[int], colours: Sequence[str], page: Page) -> str:
    parts = [
        painted(word, colour, page) + " " * (width - cell_width(word))
        for word, width, colour in zip(words, widths, colours, strict=True)
    ]
    return GAP.join(parts).rstrip()
