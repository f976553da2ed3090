"""The Lua scripts, each sent once and called by its digest afterwards.

A script takes one msgpack value and answers `[news, value]`; `Script` knows the type of that value.
"""

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import Any, Generic, TypeVar

import msgspec

from gpu_orchestrator.adapters.store.records import Told

T = TypeVar("T")
_DEFINED = re.compile(r"^local (?:function )?([\w, ]+)", re.MULTILINE)
_WORD, _COMMENT = re.compile(r"\w+"), re.compile(r"--.*")
FOLDER = files(__package__) / "scripts"


class Script(Generic[T]):
    def __init__(self, name: str, answers: Any) -> None:
        self.name = name
        self.source = _source(name)
        self.digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest()
        self._decoder = msgspec.msgpack.Decoder(tuple[tuple[Told, ...], answers])

    def decode(self, answer: bytes) -> tuple[tuple[Told, ...], T]:
        return self._decoder.decode(answer)


def _source(name: str) -> bytes:
    """With those paragraphs of common.lua that it needs: the server makes every function of a script anew at
    every call."""
    source = (FOLDER / f"{name}.lua").read_text()
    for paragraph, defined in reversed(_common()):
        if not defined or defined & set(_WORD.findall(_COMMENT.sub("", source))):
            source = f"{paragraph}\n\n{source}"
    return source.encode()


@cache
def _common() -> list[tuple[str, set[str]]]:
    """Its paragraphs, each with the names that it defines: later ones may use them, earlier ones do not. The
    first, on what is stored, defines what all need."""
    first, *rest = (FOLDER / "common.lua").read_text().strip().split("\n\n")
    return [(first, set()), *((each, set(_WORD.findall(" ".join(_DEFINED.findall(each))))) for each in rest)]
