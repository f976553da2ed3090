"""What a terminal shows after the bytes that a program sent.

Knows only what our own live views send: text, colours, moving up, erasing a line or the rest of the screen.
Anything else is an error, so that no recording is wrong without notice.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

SEQUENCE = re.compile(
    r"\x1b\[(?P<private>\?)?(?P<numbers>[\d;]*)(?P<final>[A-Za-z])|\x1b\](?:[^\x07\x1b]*)(?:\x07|\x1b\\)"
)


@dataclass(frozen=True, slots=True)
class Style:
    """Colours are 0 to 15, as a terminal numbers them; None is the terminal's own."""

    colour: int | None = None
    back: int | None = None
    bold: bool = False
    dim: bool = False
    italic: bool = False


Run = tuple[Style, str]
Row = tuple[Run, ...]
PLAIN = Style()


@dataclass(slots=True)
class Terminal:
    """A screen of `height` rows over all rows that were written so far; the cursor never moves above it."""

    width: int
    height: int
    rows: list[list[tuple[Style, str]]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    style: Style = PLAIN
    _rest: str = ""

    def feed(self, text: str) -> None:
        text = self._rest + text
        cut = _complete(text)
        self._rest, text, at = text[cut:], text[:cut], 0
        for found in SEQUENCE.finditer(text):
            self._write(text[at : found.start()])
            self._obey(found)
            at = found.end()
        self._write(text[at:])

    def shown(self) -> list[Row]:
        """Return the last rows, as many as the screen has, each as runs of one style."""
        return [tuple(_runs(row)) for row in self.rows[-self.height :]]

    def _write(self, text: str) -> None:
        for letter in text:
            match letter:
                case "\r":
                    self.column = 0
                case "\n":
                    self._down()
                case _:
                    self._put(letter)

    def _put(self, letter: str) -> None:
        if self.column == self.width:
            self._down()
            self.column = 0
        cells = self.rows[self.row]
        cells += [(PLAIN, " ")] * (self.column - len(cells))
        cells[self.column : self.column + 1] = [(self.style, letter)]
        self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append([])

    def _obey(self, found: re.Match[str]) -> None:
        numbers = [int(each or 0) for each in (found["numbers"] or "").split(";")]
        match found["private"], found["final"], numbers[0]:
            case (_, None, _) | ("?", _, _):  # a title or a link; the cursor hidden or shown
                return
            case None, "m", _:
                self.style = _styled(self.style, numbers)
            case None, "A", count:
                self.row = max(self.row - max(count, 1), 0)
            case None, "K", 2:
                self.rows[self.row] = []
            case None, "K", 0:
                del self.rows[self.row][self.column :]
            case None, "J", 0:
                del self.rows[self.row][self.column :], self.rows[self.row + 1 :]
            case _:
                raise ValueError(
                    f"the recording does not know what {found[0]!r} does; teach it to {__file__}"
                )


def _complete(text: str) -> int:
    """Return how much of the text can be read now: its end may be half a sequence."""
    at = text.rfind("\x1b")
    return at if at >= 0 and not SEQUENCE.match(text, at) else len(text)


def _styled(style: Style, numbers: list[int]) -> Style:
    for number in numbers:
        match number:
            case 0:
                style = PLAIN
            case 1:
                style = replace(style, bold=True)
            case 2:
                style = replace(style, dim=True)
            case 3:
                style = replace(style, italic=True)
            case 22:
                style = replace(style, bold=False, dim=False)
            case 23:
                style = replace(style, italic=False)
            case 39:
                style = replace(style, colour=None)
            case _ if 30 <= number <= 37 or 90 <= number <= 97:
                style = replace(style, colour=number - 30 if number < 90 else number - 82)
            case _ if 40 <= number <= 47:
                style = replace(style, back=number - 40)
            case _:
                raise ValueError(f"the recording does not know the style {number}; teach it to {__file__}")
    return style


def _runs(cells: list[tuple[Style, str]]) -> Iterator[Run]:
    """Yield the cells of a row as runs of one style, without blanks at the end."""
    while cells and cells[-1][1] == " " and cells[-1][0].back is None:
        cells = cells[:-1]
    start = 0
    for at in range(1, len(cells) + 1):
        if at == len(cells) or cells[at][0] != cells[start][0]:
            yield cells[start][0], "".join(letter for _, letter in cells[start:at])
            start = at
