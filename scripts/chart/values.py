"""The values of the chart, each with the comment above it that begins with `--`."""

# ruff: noqa: TID251 - a script, outside the pure packages

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

KEY = re.compile(r"^(?P<indent> *)(?P<name>[A-Za-z]\w*):(?P<rest>.*)$")


@dataclass(frozen=True, slots=True)
class Value:
    """A value that users may set: its path such as `webhook.replicas`, its default, what it is for."""

    path: str
    default: Any
    about: str


def values(path: Path) -> list[Value]:
    """Return the described values in their order. A comment describes all keys below."""
    text = path.read_text()
    defaults = yaml.safe_load(text)
    return [Value(each, _at(defaults, each), about) for each, about in _described(text)]


def _described(text: str) -> Iterator[tuple[str, str]]:
    parents: list[tuple[int, str]] = []
    about: list[str] = []
    for line in text.splitlines():
        if (stripped := line.strip()).startswith("#"):
            if stripped.startswith("# -- "):
                about = [stripped[5:]]
            elif about:
                about.append(stripped.removeprefix("#").strip())
        elif found := KEY.match(line):
            depth = len(found["indent"])
            parents = [each for each in parents if each[0] < depth]
            path = ".".join([name for _, name in parents] + [found["name"]])
            parents.append((depth, found["name"]))
            if about:
                yield path, " ".join(about)
            about = []
        else:
            about = []


def _at(tree: Any, path: str) -> Any:
    for name in path.split("."):
        tree = tree[name]
    return tree
