"""Ask the kubelet which devices its plugins gave to which pods: the PodResources API, gRPC on a unix socket.

    pod_resources = PodResources("/var/lib/kubelet/pod-resources/kubelet.sock")
    given = await pod_resources.list()       # None: no socket, or no answer

The socket is the kubelet's; without one (no mount, simulated nodes) there is nothing to ask. The kubelet
names a pod by namespace and name; it does not tell the UID.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from gpu_orchestrator.adapters.kubelet import protobuf
from gpu_orchestrator.adapters.kubelet.protobuf import BadMessage

if TYPE_CHECKING:
    from grpclib.client import Channel

LIST = "/v1.PodResourcesLister/List"
TIMEOUT_S = 5.0
SHORT, LONGEST = 64 * 1024, 16 * 1024 * 1024
"""Bytes of an answer. A kubelet sends 16 MiB at most."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class GivenDevices:
    """Devices of one resource, such as `nvidia.com/gpu`, that the kubelet gave to a container."""

    namespace: str
    pod: str
    resource: str
    ids: tuple[str, ...]


class PodResources:
    def __init__(self, socket: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._socket, self._timeout_s = socket, timeout_s
        self._channel: Channel | None = None
        self._failure = ""

    async def list(self) -> "tuple[GivenDevices, ...] | None":
        """Return all devices that pods of the node were given; None if the kubelet cannot be asked."""
        try:
            if not self._is_there():
                self.close()
                return None
            async with asyncio.timeout(self._timeout_s):
                given = await self._decoded(await self._call())
        except Exception as error:  # the edge of one question: the library asserts what a server sends
            self._note(f"{type(error).__name__}: {error}")
            self.close()  # the next call connects again: the kubelet may have restarted
            return None
        self._note("")
        return given

    async def _decoded(self, answer: bytes) -> "tuple[GivenDevices, ...]":
        """Decode beside the event loop what takes long."""
        if len(answer) > LONGEST:
            raise BadMessage(f"an answer of {len(answer):,} bytes")
        return await asyncio.to_thread(decode, answer) if len(answer) > SHORT else decode(answer)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _is_there(self) -> bool:
        return bool(self._socket) and Path(self._socket).is_socket()

    async def _call(self) -> bytes:
        # Imported late: an agent without the socket needs none of it in memory.
        from grpclib.client import Channel, UnaryUnaryMethod

        from gpu_orchestrator.adapters.kubelet.plain_codec import PlainCodec

        if self._channel is None:
            self._channel = Channel(path=self._socket, codec=PlainCodec())
        method: Any = UnaryUnaryMethod(self._channel, LIST, bytes, bytes)
        answer: bytes = await method(b"")
        return answer

    def _note(self, failure: str) -> None:
        """Log a failure once, not at every look."""
        if failure != self._failure:
            self._failure = failure
            if failure:
                log.warning("kubelet did not list the devices of its plugins", error=failure)
            else:
                log.info("kubelet lists the devices of its plugins")


def decode(answer: bytes) -> tuple[GivenDevices, ...]:
    """Read a ListPodResourcesResponse; raise `BadMessage` if it is none."""
    found = []
    for pod in protobuf.parts(answer, 1):
        name, namespace = protobuf.text(pod, 1), protobuf.text(pod, 2)
        for container in protobuf.parts(pod, 3):
            for devices in protobuf.parts(container, 2):
                ids = tuple(protobuf.texts(devices, 2))
                found.append(GivenDevices(namespace, name, protobuf.text(devices, 1), ids))
    return tuple(found)
