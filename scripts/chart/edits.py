"""Changes of a manifest's text that turn it into a template of Helm. They keep the manifest's comments.

Each change is made exactly where it is meant, or raises `NotThere`: so `make charts` fails after a change
of config that the chart must follow.
"""

import re
from collections.abc import Callable

Edit = Callable[[str], str]


class NotThere(Exception):
    """A manifest does not have what an edit was to change."""


def put(old: str, new: str, *, times: int = 1) -> Edit:
    """Replace this text, which must be there so many times."""

    def edit(text: str) -> str:
        if (found := text.count(old)) != times:
            raise NotThere(f"{old!r} was to be found {times} times, and is there {found} times")
        return text.replace(old, new)

    return edit


def block(start: str, new: str) -> Edit:
    """Replace the line `start` and all that belongs to it: lines that are indented deeper, or items of its
    list."""

    def edit(text: str) -> str:
        lines = text.splitlines(keepends=True)
        at = _only(lines, start)
        return "".join([*lines[:at], new, *lines[_end(lines, at) :]])

    return edit


def around(start: str, before: str, after: str) -> Edit:
    """Put text before the line `start`, and after all that belongs to it."""

    def edit(text: str) -> str:
        lines = text.splitlines(keepends=True)
        at = _only(lines, start)
        end = _end(lines, at)
        return "".join([*lines[:at], before, *lines[at:end], after, *lines[end:]])

    return edit


def after(start: str, new: str) -> Edit:
    """Put text after all that belongs to the line `start`."""
    return around(start, "", new)


def _only(lines: list[str], start: str) -> int:
    found = [number for number, line in enumerate(lines) if line.rstrip("\n") == start]
    if len(found) != 1:
        raise NotThere(f"the line {start!r} was to be there once, and is there {len(found)} times")
    return found[0]


def _end(lines: list[str], at: int) -> int:
    """Return the number of the first line that does not belong to that at `at`."""
    depth = _depth(lines[at])
    for number in range(at + 1, len(lines)):
        line = lines[number]
        is_item = line.lstrip().startswith("- ") and not lines[at].lstrip().startswith("- ")
        if line.strip() and not (_depth(line) > depth or (is_item and _depth(line) == depth)):
            return number
    return len(lines)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def only_if(condition: str, *objects: str) -> Edit:
    """Leave out these objects, given as `Kind/name`, unless the condition is true."""

    def edit(text: str) -> str:
        documents = text.split("---\n")
        for each in objects:
            kind, name = each.split("/")
            found = [number for number, document in enumerate(documents) if _is(document, kind, name)]
            if len(found) != 1:
                raise NotThere(f"{each} was to be there once, and is there {len(found)} times")
            documents[found[0]] = f"{{{{- if {condition} }}}}\n{documents[found[0]]}{{{{- end }}}}\n"
        return "---\n".join(documents)

    return edit


def _is(document: str, kind: str, name: str) -> bool:
    has_kind = re.search(rf"^kind: {re.escape(kind)}$", document, re.MULTILINE)
    has_name = re.search(rf"^metadata:\n  name: {re.escape(name)}$", document, re.MULTILINE)
    return bool(has_kind and has_name)
