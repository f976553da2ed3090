"""Words of others on an operator's terminal: markup is not taken for such, and what would move the cursor, or
worse, is shown and not sent.
"""

from rich.text import Text


def plain(words: str) -> Text:
    """For a cell of a table."""
    return Text("".join(map(_visible, words)))


def lines(words: str) -> str:
    """For what may have several."""
    return "\n".join(plain(line).plain for line in words.split("\n"))


def _visible(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()
