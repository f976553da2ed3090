"""The verbs of the API server, for any `Resource`. Pods' own verbs are in `pods.py`, reviews in `reviews.py`.

    async with Client.open(config.load()) as client:
        lease = await client.get(LEASES, "gpu-scheduler", "gpu-orchestrator-system")

Errors are those of `errors.py`. Requests are tried again as `retry.py` says.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

from gpu_orchestrator.adapters.kube import errors
from gpu_orchestrator.adapters.kube.auth.config import Config
from gpu_orchestrator.adapters.kube.errors import Asked
from gpu_orchestrator.adapters.kube.retry import Retry
from gpu_orchestrator.adapters.kube.transport import codec
from gpu_orchestrator.adapters.kube.transport.base import Request, Stream, Transport
from gpu_orchestrator.adapters.kube.transport.codec import Body
from gpu_orchestrator.adapters.kube.transport.pooled import PooledTransport
from gpu_orchestrator.adapters.kube.transport.urls import collection, target
from gpu_orchestrator.api.wire import Object, Resource

T = TypeVar("T", bound=Object)

# Inside the class `list` is a verb.
Items = list

PAGE = 500
TIMEOUT_S = 30.0


class Patch(Enum):
    """How a patch is meant; the value is its content type."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """All objects of a list, and the version of the collection it shows."""

    items: Sequence[T]
    resource_version: str


class Client:
    """One client serves a whole process; it is light, its transport holds the connections."""

    def __init__(
        self, transport: Transport, *, retry: Retry | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.transport = transport
        self.retry = retry or Retry()
        self.timeout_s = timeout_s

    @classmethod
    @asynccontextmanager
    async def open(
        cls, config: Config, kind: Callable[[Config], Transport] = PooledTransport
    ) -> AsyncIterator["Client"]:
        """A client on its own transport, closed at the end."""
        transport = kind(config)
        try:
            yield cls(transport)
        finally:
            await transport.close()

    def with_limits(self, *, patience_s: float = 0.0, timeout_s: float = TIMEOUT_S) -> "Client":
        """The same connections with other limits: for callers who know better when to try again."""
        return Client(self.transport, retry=Retry(patience_s, self.retry.backoff), timeout_s=timeout_s)

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        asked = _asked("get", resource, name, namespace)
        answer = await self.send(asked, Request("GET", target(resource, name, namespace)), idempotent=True)
        return codec.decode(resource, answer)

    async def list(
        self, resource: Resource[T], namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> Listing[T]:
        """Everything that matches, fetched page by page."""
        for last_try in (False, False, True):
            try:
                return await self._list(resource, namespace, labels=labels, fields=fields)
            except errors.Gone:
                # The first page's version was compacted away under our hands: start over with a new one.
                if last_try:
                    raise
        raise AssertionError("not reached")

    async def _list(self, resource: Resource[T], namespace: str, *, labels: str, fields: str) -> Listing[T]:
        items: Items[T] = []
        version = ""
        async for page in self.pages(resource, namespace, labels=labels, fields=fields):
            items += page.items or ()
            version = page.metadata.resource_version
        return Listing(items, version)

    async def pages(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        size: int = PAGE,
        on_bad: codec.OnBad | None = None,
    ) -> AsyncIterator[codec.Page[T]]:
        """The pages of one list, all of one version; raises `Gone` if that is compacted before the end."""
        asked, more = _asked("list", resource, "", namespace), ""
        while True:
            query = {"labelSelector": labels, "fieldSelector": fields, "limit": size, "continue": more}
            request = Request("GET", collection(resource, namespace, query))
            page = codec.decode_page(resource, await self.send(asked, request, idempotent=True), on_bad)
            yield page
            more = page.metadata.continue_
            if not more:
                return

    async def create(
        self,
        resource: Resource[T],
        obj: Body,
        namespace: str = "",
        *,
        idempotent: bool = False,
    ) -> T:
        """A new object. `idempotent`: AlreadyExists is good news, so send it again after a lost answer."""
        body = codec.encode(resource, obj)
        name, own = _name_of(obj)
        asked = _asked("create", resource, name, namespace or own)
        request = Request("POST", collection(resource, namespace or own), body)
        answer = await self.send(asked, request, idempotent=idempotent)
        return codec.decode(resource, answer)

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        body: Body,
        namespace: str = "",
        *,
        kind: Patch = Patch.MERGE,
        subresource: str = "",
    ) -> T:
        """Change parts of an object. A `metadata.resourceVersion` or `uid` in the body guards it.

        Without such a guard a Conflict is only the server's own race with other writers, and is tried again.
        """
        asked = _asked("patch", resource, name, namespace, subresource)
        encoded = codec.encode_plain(body)
        request = Request("PATCH", target(resource, name, namespace, subresource), encoded, kind.value)
        unguarded = b'"resourceVersion"' not in encoded
        answer = await self.send(asked, request, idempotent=True, racy=unguarded)
        return codec.decode(resource, answer)

    async def delete(
        self,
        resource: Resource[Any],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: str = "",
        grace_s: int | None = None,
    ) -> None:
        """Delete one object, if it still has this uid and version where they are given."""
        guard = {"uid": uid, "resourceVersion": resource_version}
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {name: value for name, value in guard.items() if value} or None,
            "propagationPolicy": propagation or None,
            "gracePeriodSeconds": grace_s,
        }
        body = codec.encode_plain({name: value for name, value in options.items() if value is not None})
        asked = _asked("delete", resource, name, namespace)
        request = Request("DELETE", target(resource, name, namespace), body)
        await self.send(asked, request, idempotent=True, done_if=errors.NotFound)

    async def send(
        self,
        asked: Asked,
        request: Request,
        *,
        idempotent: bool,
        racy: bool = False,
        done_if: type[errors.ApiError] | None = None,
    ) -> bytes:
        """One request with its retries. `racy`: a Conflict is tried again too. `done_if`: the refusal which,
        after a try whose outcome is unknown, says that it was carried out."""
        loop = asyncio.get_running_loop()
        started, attempt, renew, unknown = loop.time(), 0, False, False
        while True:
            try:
                return await self._once(asked, request, renew)
            except errors.KubeError as error:
                if unknown and done_if and isinstance(error, done_if):
                    return b""
                if isinstance(error, errors.Unauthorized) and not renew:
                    renew = True  # the token may have rotated since we read it
                    continue
                again = errors.Temporary(str(error)) if racy and _is_race(error) else error
                spent = loop.time() - started
                delay = self.retry.delay_s(again, attempt=attempt, spent_s=spent, idempotent=idempotent)
                if delay is None:
                    raise
                unknown |= isinstance(error, (errors.LostAnswer, errors.Unavailable))
            attempt += 1
            await asyncio.sleep(delay)

    async def _once(self, asked: Asked, request: Request, renew: bool) -> bytes:
        answer = await self.transport.send(request, timeout_s=self.timeout_s, renew=renew)
        if answer.status >= 300:
            raise errors.from_answer(asked, answer.status, answer.body, answer.headers.get("Retry-After"))
        return answer.body

    @asynccontextmanager
    async def stream(
        self, asked: Asked, request: Request, *, timeout_s: float, renew: bool = False
    ) -> AsyncIterator[Stream]:
        """An answer that comes in pieces, such as a watch. One try: who watches knows how to go on."""
        async with self.transport.stream(request, timeout_s=timeout_s, renew=renew) as stream:
            if stream.status >= 300:
                body = b"".join([chunk async for chunk in stream.chunks])
                raise errors.from_answer(asked, stream.status, body, stream.headers.get("Retry-After"))
            yield stream


def _asked(verb: str, resource: Resource[Any], name: str, namespace: str, subresource: str = "") -> Asked:
    what = f"{resource.plural}/{subresource}" if subresource else resource.plural
    return Asked(verb, what, resource.group, name, namespace)


def _name_of(obj: Body) -> tuple[str, str]:
    """Name and namespace, of a wire value or of a plain dict."""
    if isinstance(obj, msgspec.Struct):
        meta = obj.metadata  # type: ignore[attr-defined]  # all objects have it
        return meta.name, meta.namespace
    plain = obj.get("metadata") or {}
    if isinstance(plain, msgspec.Struct):
        plain = msgspec.to_builtins(plain)
    return plain.get("name", ""), plain.get("namespace", "")


def _is_race(error: errors.KubeError) -> bool:
    return isinstance(error, errors.Conflict) and not isinstance(error, errors.AlreadyExists)
