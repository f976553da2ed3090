"""A kubelet's PodResources API on a unix socket: real gRPC, with devices that a test gives to pods."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol
from grpclib.server import Server

from gpu_orchestrator.adapters.kubelet.plain_codec import PlainCodec
from gpu_orchestrator.adapters.kubelet.pod_resources import LIST

Given = tuple[str, str, Sequence[tuple[str, Sequence[str]]]]
"""Namespace and name of a pod, and for each resource the ids of its devices."""


class Kubelet:
    def __init__(self) -> None:
        self.given: list[Given] = []
        self.refuses = False
        self.calls = 0

    def __mapping__(self) -> dict[str, Handler]:
        return {LIST: Handler(self._list, Cardinality.UNARY_UNARY, bytes, bytes)}

    async def _list(self, stream: Any) -> None:
        await stream.recv_message()
        self.calls += 1
        if self.refuses:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, "rejected by rate limit")
        await stream.send_message(answer(self.given))


class EndingServer(Server):
    """A server whose connections end with it, as those of a process do. asyncio's stay until their clients
    close them, and since Python 3.12 `wait_closed` waits for that."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._protocols: list[H2Protocol] = []

    def _protocol_factory(self) -> H2Protocol:
        made = super()._protocol_factory()
        self._protocols.append(made)
        return made

    def end(self) -> None:
        self.close()
        for each in self._protocols:
            each.connection.close()


@asynccontextmanager
async def serving(kubelet: Kubelet, path: Path) -> AsyncIterator[None]:
    server = EndingServer([kubelet], codec=PlainCodec())
    await server.start(path=str(path))
    try:
        yield
    finally:
        server.end()
        await server.wait_closed()


def answer(given: Iterable[Given]) -> bytes:
    """Return a ListPodResourcesResponse."""
    return b"".join(field(1, _pod(*each)) for each in given)


def _pod(namespace: str, name: str, resources: Sequence[tuple[str, Sequence[str]]]) -> bytes:
    devices = b"".join(
        field(2, field(1, resource.encode()) + b"".join(field(2, each.encode()) for each in ids))
        for resource, ids in resources
    )
    return field(1, name.encode()) + field(2, namespace.encode()) + field(3, field(1, b"main") + devices)


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])
