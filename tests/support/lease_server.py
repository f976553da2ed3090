"""Leases as an API server stores them: versions move with every write, and a stale write is refused.

It is a transport, so that `DeviceLeases` runs on the real client. Every request takes a random time, so that
requests sent together arrive in any order.
"""

import asyncio
import json
import random
from contextlib import AbstractAsyncContextManager
from typing import Any

from gpu_orchestrator.adapters.kube.transport.base import Answer, Request, Stream

Json = dict[str, Any]


class LeaseServer:
    """`most_at_once` is the largest number of requests that it had to answer at one time."""

    def __init__(self, seed: int) -> None:
        self.most_at_once = self._at_once = 0
        self.leases: dict[str, Json] = {}
        self.forbidden: set[str] = set()
        self._rng, self._version = random.Random(seed), 0

    async def send(self, request: Request, *, timeout_s: float, renew: bool = False) -> Answer:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await asyncio.sleep(self._rng.random() / 100)
            answer = self._answer(request.method, request.target, json.loads(request.body or b"{}"))
            await asyncio.sleep(self._rng.random() / 100)
        finally:
            self._at_once -= 1
        return answer

    def stream(
        self, request: Request, *, timeout_s: float, renew: bool = False
    ) -> AbstractAsyncContextManager[Stream]:
        raise NotImplementedError

    async def close(self) -> None: ...

    def _answer(self, method: str, target: str, body: Json) -> Answer:
        name = target.partition("?")[0].rpartition("/leases")[2].strip("/") or body["metadata"]["name"]
        found = self.leases.get(name)
        if name in self.forbidden:
            return _refusal(403, "Forbidden")
        match method:
            case "POST" if found is None:
                self._version += 1
                body["metadata"] |= {"uid": f"uid-{self._version}", "resourceVersion": str(self._version)}
                self.leases[name] = body
                return _ok(body)
            case "POST":
                return _refusal(409, "AlreadyExists")
            case _ if found is None:
                return _refusal(404, "NotFound")
            case "GET":
                return _ok(found)
            case "PATCH":
                return self._patch(name, found, body)
            case _:
                return self._delete(name, found, body.get("preconditions", {}))

    def _patch(self, name: str, found: Json, body: Json) -> Answer:
        if body["metadata"].pop("resourceVersion") != found["metadata"]["resourceVersion"]:
            return _refusal(409, "Conflict")
        self._version += 1
        made = _merged(found, body)
        made["metadata"]["resourceVersion"] = str(self._version)
        self.leases[name] = made
        return _ok(made)

    def _delete(self, name: str, found: Json, guard: Json) -> Answer:
        if any(found["metadata"][key] != value for key, value in guard.items()):
            return _refusal(409, "Conflict")
        del self.leases[name]
        return _ok({})


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return old | {key: _merged(old.get(key), value) for key, value in new.items()}


def _ok(body: Json) -> Answer:
    return Answer(200, json.dumps(body).encode())


def _refusal(code: int, reason: str) -> Answer:
    status = {"kind": "Status", "code": code, "reason": reason, "message": reason}
    return Answer(code, json.dumps(status).encode())
