"""The Lua scripts. Each is sent once and then called by its digest.

A script takes one msgpack value and answers `[news, value]`; `Script` holds the type of that value.
"""

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from gpu_orchestrator.adapters.store.records import NewsItem

T = TypeVar("T")
_DEFINED = re.compile(r"^local (?:function )?([\w, ]+)", re.MULTILINE)
_WORD, _COMMENT = re.compile(r"\w+"), re.compile(r"--.*")
FOLDER = files(__package__) / "scripts"
_SMALL_WRITE = "#!lua flags=allow-oom\nreturn redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))"


class Script(Generic[T]):
    def __init__(self, name: str, answers: Any) -> None:
        self.name = name
        self.source = _source(name)
        self.digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest()
        self._decoder = msgspec.msgpack.Decoder(tuple[tuple[NewsItem, ...], answers])

    def decode(self, answer: bytes) -> tuple[tuple[NewsItem, ...], T]:
        return self._decoder.decode(answer)


def small_write(command: str, key: str, *parts: bytes | str) -> tuple[bytes | str | int, ...]:
    """Return a command that writes a key also when the server has reached its maxmemory."""
    return ("EVAL", _SMALL_WRITE, 1, key, command, *parts)


def _source(name: str) -> bytes:
    """Return the script with the paragraphs of `common.lua` that it needs, and no others: the server creates
    every function of a script again at every call."""
    first, source = _first_line((FOLDER / f"{name}.lua").read_text())
    parts, used = [source], _words(source)
    for paragraph in reversed(_common()):
        if not paragraph.defines or paragraph.defines & used:
            parts.append(paragraph.text)
            used |= paragraph.uses
    return (first + "\n\n".join(reversed(parts))).encode()


def _words(source: str) -> set[str]:
    return set(_WORD.findall(_COMMENT.sub("", source)))


def _first_line(source: str) -> tuple[str, str]:
    """Split off the line `#!lua flags=…`, which must stay the first. With `allow-oom` a script runs also when
    the server has reached its maxmemory: what ends, renews or forgets something must never be refused."""
    if not source.startswith("#!"):
        return "", source
    line, _, rest = source.partition("\n")
    return f"{line}\n", rest


class _Paragraph(NamedTuple):
    text: str
    defines: set[str]
    uses: set[str]


@cache
def _common() -> list[_Paragraph]:
    """Return the paragraphs of `common.lua`. A paragraph uses only names of earlier ones. The first, which
    documents the keys, defines what every script needs."""
    first, *rest = (FOLDER / "common.lua").read_text().strip().split("\n\n")
    names = [set(_WORD.findall(" ".join(_DEFINED.findall(each)))) for each in rest]
    return [
        _Paragraph(text, defines, _words(text))
        for text, defines in zip((first, *rest), (set[str](), *names), strict=True)
    ]
