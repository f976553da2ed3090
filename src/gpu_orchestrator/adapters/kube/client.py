"""The API server's verbs for any `Resource`. `pods.py` has bind and evict, `reviews.py` has access reviews.

    async with Client.open(config.load()) as client:
        lease = await client.get(LEASES, "gpu-scheduler", "gpu-orchestrator-system")

Raises the errors of `errors.py`. `retry.py` decides which requests are sent again.
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
from gpu_orchestrator.adapters.kube.errors import Operation
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
    """The kind of a patch; the value is its content type."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"
    """Server-side apply; JSON is YAML, too. Creates the object if it is not there."""


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """All objects of a list, and the resourceVersion of the collection at that time."""

    items: Sequence[T]
    resource_version: str


class Client:
    """Calls the API server. One serves a whole process; it is cheap, its transport holds the connections."""

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
        """Open a client with a transport of its own, and close the transport at the end."""
        transport = kind(config)
        try:
            yield cls(transport)
        finally:
            await transport.close()

    def with_limits(self, *, patience_s: float = 0.0, timeout_s: float = TIMEOUT_S) -> "Client":
        """Return a client on the same connections with other limits, for callers that retry by themselves."""
        return Client(self.transport, retry=Retry(patience_s, self.retry.backoff), timeout_s=timeout_s)

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        operation = _operation("get", resource, name, namespace)
        answer = await self.send(
            operation, Request("GET", target(resource, name, namespace)), idempotent=True
        )
        return codec.decode(resource, answer)

    async def list(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        version: str = "",
    ) -> Listing[T]:
        """Return every object that matches, fetched page by page. `version` "0": as the server's cache has
        them, which may be a moment behind."""
        for last_try in (False, False, True):
            try:
                return await self._list(
                    resource, namespace, labels=labels, fields=fields, from_version=version
                )
            except errors.Gone:
                # The first page's version was compacted before the last page: start over with a new one.
                if last_try:
                    raise
        raise AssertionError("not reached")

    async def _list(
        self, resource: Resource[T], namespace: str, *, labels: str, fields: str, from_version: str
    ) -> Listing[T]:
        items: Items[T] = []
        version = ""
        async for page in self.pages(resource, namespace, labels=labels, fields=fields, version=from_version):
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
        version: str = "",
        size: int = PAGE,
        on_bad: codec.OnBad | None = None,
    ) -> AsyncIterator[codec.Page[T]]:
        """Yield the pages of one list, all of one version; raise `Gone` if that is compacted meanwhile."""
        operation, more = _operation("list", resource, "", namespace), ""
        while True:
            query = {"labelSelector": labels, "fieldSelector": fields, "limit": size, "continue": more}
            if version and not more:
                query["resourceVersion"] = version
            request = Request("GET", collection(resource, namespace, query))
            page = codec.decode_page(resource, await self.send(operation, request, idempotent=True), on_bad)
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
        """Create an object. `idempotent`: the caller accepts AlreadyExists, so retry after a lost answer."""
        body = codec.encode(resource, obj)
        name, own = _name_of(obj)
        operation = _operation("create", resource, name, namespace or own)
        request = Request("POST", collection(resource, namespace or own), body)
        answer = await self.send(operation, request, idempotent=idempotent)
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
        manager: str = "",
    ) -> T:
        """Change parts of an object. A `metadata.resourceVersion` or `uid` in the body guards it. `manager`
        is who owns the fields, as the object's `managedFields` show it; the program's name if empty.

        Without such a guard a Conflict is only the server's own race with other writers, so we retry.
        """
        operation = _operation("patch", resource, name, namespace, subresource)
        encoded = codec.encode_plain(body)
        path = target(resource, name, namespace, subresource, {"fieldManager": manager} if manager else None)
        request = Request("PATCH", path, encoded, kind.value)
        unguarded = b'"resourceVersion"' not in encoded
        answer = await self.send(operation, request, idempotent=True, racy=unguarded)
        return codec.decode(resource, answer)

    async def apply(
        self,
        resource: Resource[T],
        name: str,
        obj: Body,
        namespace: str = "",
        *,
        manager: str,
        subresource: str = "",
    ) -> T:
        """Make these fields of an object be as given, by server-side apply, also where another manager owns
        them. Fields that `manager` applied before and that are not given now are removed. Creates the object
        if it is not there; a subresource cannot do that and raises NotFound."""
        operation = _operation("patch", resource, name, namespace, subresource)
        path = target(resource, name, namespace, subresource, {"fieldManager": manager, "force": "true"})
        request = Request("PATCH", path, codec.encode(resource, obj), Patch.APPLY.value)
        return codec.decode(resource, await self.send(operation, request, idempotent=True, racy=True))

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
        """Delete one object. With `uid` or `resource_version`, only if the object still has them."""
        guard = {"uid": uid, "resourceVersion": resource_version}
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {name: value for name, value in guard.items() if value} or None,
            "propagationPolicy": propagation or None,
            "gracePeriodSeconds": grace_s,
        }
        body = codec.encode_plain({name: value for name, value in options.items() if value is not None})
        operation = _operation("delete", resource, name, namespace)
        request = Request("DELETE", target(resource, name, namespace), body)
        await self.send(operation, request, idempotent=True, done_if=errors.NotFound)

    async def send(
        self,
        operation: Operation,
        request: Request,
        *,
        idempotent: bool,
        racy: bool = False,
        done_if: type[errors.ApiError] | None = None,
    ) -> bytes:
        """Send one request with its retries. `racy`: retry a Conflict too. `done_if`: the error that means
        success after a try with an unknown outcome, as NotFound does for a delete."""
        loop = asyncio.get_running_loop()
        started, attempt, renew, unknown = loop.time(), 0, False, False
        while True:
            try:
                return await self._once(operation, request, renew)
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

    async def _once(self, operation: Operation, request: Request, renew: bool) -> bytes:
        answer = await self.transport.send(request, timeout_s=self.timeout_s, renew=renew)
        if answer.status >= 300:
            raise errors.from_answer(operation, answer.status, answer.body, answer.headers.get("Retry-After"))
        return answer.body

    @asynccontextmanager
    async def stream(
        self, operation: Operation, request: Request, *, timeout_s: float, renew: bool = False
    ) -> AsyncIterator[Stream]:
        """Open a streamed answer, such as a watch. No retries: the watch knows where to resume."""
        async with self.transport.stream(request, timeout_s=timeout_s, renew=renew) as stream:
            if stream.status >= 300:
                body = b"".join([chunk async for chunk in stream.chunks])
                raise errors.from_answer(operation, stream.status, body, stream.headers.get("Retry-After"))
            yield stream


def _operation(
    verb: str, resource: Resource[Any], name: str, namespace: str, subresource: str = ""
) -> Operation:
    what = f"{resource.plural}/{subresource}" if subresource else resource.plural
    return Operation(verb, what, resource.group, name, namespace)


def _name_of(obj: Body) -> tuple[str, str]:
    """Return name and namespace of a wire value or of a plain dict."""
    if isinstance(obj, msgspec.Struct):
        meta = obj.metadata  # type: ignore[attr-defined]  # all objects have it
        return meta.name, meta.namespace
    plain = obj.get("metadata") or {}
    if isinstance(plain, msgspec.Struct):
        plain = msgspec.to_builtins(plain)
    return plain.get("name", ""), plain.get("namespace", "")


def _is_race(error: errors.KubeError) -> bool:
    return isinstance(error, errors.Conflict) and not isinstance(error, errors.AlreadyExists)
