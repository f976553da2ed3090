"""The Lua scripts, each sent once and called by its digest afterwards.

A script takes one msgpack value and answers `[news, value]`; `Script` knows the type of that value.
"""

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any, Generic, TypeVar

import msgspec

from gpu_orchestrator.adapters.store.values import Told

T = TypeVar("T")
FOLDER = files(__package__) / "scripts"


class Script(Generic[T]):
    def __init__(self, name: str, answers: Any) -> None:
        self.name = name
        self.source = _source(name)
        self.digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest()
        self._decoder = msgspec.msgpack.Decoder(tuple[tuple[Told, ...], answers])

    def decode(self, answer: bytes) -> tuple[tuple[Told, ...], T]:
        return self._decoder.decode(answer)


@cache
def _common() -> bytes:
    return (FOLDER / "common.lua").read_bytes()


def _source(name: str) -> bytes:
    return _common() + (FOLDER / f"{name}.lua").read_bytes()
