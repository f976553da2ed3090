"""A transport that plays a script, for tests of `Client` and `Watch`.

Each request takes the next line of the script: an answer, an error to raise, or a list of chunks to stream,
in which a number is a pause in seconds, `HANG` is endless silence and an error breaks the stream.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gpu_orchestrator.adapters.kube.transport.base import Answer, Request, Stream

HANG = float("inf")
Chunk = bytes | float | Exception
Line = Answer | Exception | Sequence[Chunk]


class Scripted:
    def __init__(self, *script: Line) -> None:
        self.script = list(script)
        self.requests: list[Request] = []
        self.renewed: list[bool] = []

    async def send(self, request: Request, *, timeout_s: float, renew: bool = False) -> Answer:
        line = self._next(request, renew)
        if isinstance(line, Exception):
            raise line
        assert isinstance(line, Answer)
        return line

    @asynccontextmanager
    async def stream(
        self, request: Request, *, timeout_s: float, renew: bool = False
    ) -> AsyncIterator[Stream]:
        line = self._next(request, renew)
        if isinstance(line, Exception):
            raise line
        if isinstance(line, Answer):
            yield Stream(line.status, line.headers, _chunks([line.body]))
        else:
            yield Stream(200, {}, _chunks(line))

    async def close(self) -> None: ...

    def _next(self, request: Request, renew: bool) -> Line:
        self.requests.append(request)
        self.renewed.append(renew)
        if not self.script:
            return [HANG]
        return self.script.pop(0)


async def _chunks(line: Sequence[Chunk]) -> AsyncIterator[bytes]:
    for chunk in line:
        if isinstance(chunk, bytes):
            yield chunk
        elif isinstance(chunk, Exception):
            raise chunk
        else:
            await (asyncio.Event().wait() if chunk == HANG else asyncio.sleep(chunk))


def answer(body: object = None, status: int = 200, **headers: str) -> Answer:
    named = {name.replace("_", "-").title(): value for name, value in headers.items()}
    return Answer(status, msgspec.json.encode(body or {}), named)


def refusal(status: int, reason: str = "", message: str = "no", **headers: str) -> Answer:
    body = {"kind": "Status", "message": message, "reason": reason, "code": status}
    return answer(body, status, **headers)


def event(kind: str, obj: object) -> bytes:
    return json.dumps({"type": kind, "object": msgspec.to_builtins(obj)}).encode() + b"\n"


def bookmark(version: int, *, end: bool = False) -> bytes:
    notes = {"k8s.io/initial-events-end": "true"} if end else {}
    meta: dict[str, Any] = {"resourceVersion": str(version), "annotations": notes}
    return event("BOOKMARK", {"metadata": meta, "spec": {"containers": None}})
