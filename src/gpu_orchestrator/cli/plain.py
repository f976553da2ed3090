"""Print foreign text safely on an operator's terminal: markup is not interpreted, and control characters are
shown, not sent."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def visible(words: str) -> str:
    """Return text on one line in which every control character is written out."""
    return words if words.isprintable() else "".join(map(_visible, words))


def plain(words: str) -> "Text":
    """Return text for a cell of a table of the live view."""
    from rich.text import Text  # the commands that print no such table start faster without it

    return Text(visible(words))


def lines(words: str) -> str:
    """Return text that may have several lines."""
    return "\n".join(map(visible, words.split("\n")))


def output_of_a_program(words: str) -> str:
    """Return what a program wrote: its colours are dropped, a returned carriage starts a new line, and tabs
    stay."""
    words = _COLOUR.sub("", words).replace("\r\n", "\n").replace("\r", "\n")
    return "\n".join("\t".join(map(visible, line.split("\t"))) for line in words.split("\n"))


def _visible(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()
