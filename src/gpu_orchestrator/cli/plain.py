"""Print foreign text safely on an operator's terminal: markup is not interpreted, and control characters are
shown, not sent."""

from rich.text import Text


def plain(words: str) -> Text:
    """Return text for a cell of a table."""
    return Text("".join(map(_visible, words)))


def lines(words: str) -> str:
    """Return text that may have several lines."""
    return "\n".join(plain(line).plain for line in words.split("\n"))


def _visible(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()
