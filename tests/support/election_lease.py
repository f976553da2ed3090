"""One Lease behind a transport that loses, delays and refuses requests: the server of the election tests."""

import asyncio
import json
import random
from contextlib import AbstractAsyncContextManager
from typing import Any

from gpu_orchestrator.adapters.kube.errors import LostAnswer, Unreachable
from gpu_orchestrator.adapters.kube.transport.base import Answer, Request, Stream
from tests.support.scripted_transport import answer, refusal


class LeaseServer:
    """Compare-and-set as in the API server. Each client gets its own `Line` to it."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.writes = 0

    def handle(self, request: Request) -> Answer:
        body = json.loads(request.body or b"{}")
        match request.method:
            case "GET":
                return answer(self.lease) if self.lease else refusal(404)
            case "POST":
                return self._write({}, body) if not self.lease else refusal(409, "AlreadyExists")
        if not self.lease:
            return refusal(404)
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            return refusal(409, "Conflict")
        return self._write(self.lease, body)

    def _write(self, old: dict[str, Any], new: dict[str, Any]) -> Answer:
        self.writes += 1
        meta = {"name": "x", "namespace": "ns", "uid": "u", "resourceVersion": str(self.writes)}
        self.lease = {"metadata": meta, "spec": {**old.get("spec", {}), **new["spec"]}}
        return answer(self.lease)


class Line:
    """One client's connection to the server. It may be slow (each way) or cut."""

    def __init__(
        self,
        server: LeaseServer,
        rng: random.Random | None = None,
        *,
        loss: float = 0.0,
        slowest_s: float = 0.0,
        commit_s: float = 0.0,
    ) -> None:
        self._server, self._rng = server, rng or random.Random(0)
        self.commit_s = commit_s
        self.loss, self.slowest_s, self.is_cut, self.loses_answers = loss, slowest_s, False, False

    async def send(self, request: Request, *, timeout_s: float, renew: bool = False) -> Answer:
        try:
            async with asyncio.timeout(timeout_s):
                await self._travel(Unreachable("lost on the way there"))
                result = await asyncio.shield(asyncio.ensure_future(self._carry_out(request)))
                if self.loses_answers and request.method != "GET":
                    raise LostAnswer("carried out, but the answer was lost")
                await self._travel(LostAnswer("lost on the way back"))
                return result
        except TimeoutError as error:
            raise LostAnswer("too slow") from error

    async def _carry_out(self, request: Request) -> Answer:
        """Writes take `commit_s`, even after the caller has given up; reads are faster."""
        if request.method != "GET":
            await asyncio.sleep(self.commit_s)
        return self._server.handle(request)

    async def _travel(self, lost: Exception) -> None:
        if self.is_cut:
            await asyncio.Event().wait()
        await asyncio.sleep(self._rng.uniform(0, self.slowest_s))
        if self._rng.random() < self.loss:
            raise lost

    def stream(
        self, request: Request, *, timeout_s: float, renew: bool = False
    ) -> AbstractAsyncContextManager[Stream]:
        raise NotImplementedError

    async def close(self) -> None: ...
