"""A small device plugin: it offers devices to a real kubelet over its gRPC sockets, as NVIDIA's plugin does.

    with device_plugin.offering(real_node.device_plugins, "nvidia.com/gpu", uuids):
        ...  # the node has these devices for pods with limits of nvidia.com/gpu

A container that gets devices finds them in NVIDIA_VISIBLE_DEVICES. The messages are those of
deviceplugin/v1beta1/api.proto of the kubelet.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler
from grpclib.server import Server

from gpu_orchestrator.adapters.kubelet import protobuf
from gpu_orchestrator.adapters.kubelet.plain_codec import PlainCodec
from gpu_orchestrator.api.names import NVIDIA_DEVICES_ENV
from tests.support.kubelet_server import field
from tests.support.patience import PATIENCE_S

T = TypeVar("T")

VERSION = "v1beta1"
REGISTER = f"/{VERSION}.Registration/Register"
SERVICE = f"/{VERSION}.DevicePlugin"
KUBELET = "kubelet.sock"
OURS = "tests.sock"


class DevicePlugin:
    """The service that the kubelet calls."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = devices

    def __mapping__(self) -> dict[str, Handler]:
        one, many = Cardinality.UNARY_UNARY, Cardinality.UNARY_STREAM
        return {
            f"{SERVICE}/GetDevicePluginOptions": Handler(self._options, one, bytes, bytes),
            f"{SERVICE}/ListAndWatch": Handler(self._list, many, bytes, bytes),
            f"{SERVICE}/Allocate": Handler(self._allocate, one, bytes, bytes),
        }

    async def _options(self, stream: Any) -> None:
        await stream.recv_message()
        await stream.send_message(b"")

    async def _list(self, stream: Any) -> None:
        """Send the devices once, and keep the stream open: the kubelet believes in them as long as it is."""
        await stream.recv_message()
        healthy = field(2, b"Healthy")
        await stream.send_message(b"".join(field(1, _string(1, each) + healthy) for each in self._devices))
        await asyncio.Event().wait()

    async def _allocate(self, stream: Any) -> None:
        asked = protobuf.parts(await stream.recv_message(), 1)
        await stream.send_message(b"".join(field(1, _environment(protobuf.texts(each, 1))) for each in asked))


@contextmanager
def offering(folder: Path, resource: str, devices: Sequence[str]) -> Iterator[None]:
    """Offer these devices to the kubelet whose device plugins have their sockets in `folder`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def do(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE_S)

    try:
        server = do(_serve(folder, devices))
        try:
            do(_register(folder, resource))
            yield
        finally:
            do(_end(server))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()


async def _serve(folder: Path, devices: Sequence[str]) -> Server:
    server = Server([DevicePlugin(devices)], codec=PlainCodec())
    await server.start(path=str(folder / OURS))
    return server


async def _register(folder: Path, resource: str) -> None:
    async with Channel(path=str(folder / KUBELET), codec=PlainCodec()) as channel:
        register: Any = UnaryUnaryMethod(channel, REGISTER, bytes, bytes)
        await register(_string(1, VERSION) + _string(2, OURS) + _string(3, resource))


async def _end(server: Server) -> None:
    server.close()
    await server.wait_closed()


def _environment(devices: Sequence[str]) -> bytes:
    """Return a ContainerAllocateResponse that sets one variable."""
    return field(1, _string(1, NVIDIA_DEVICES_ENV) + _string(2, ",".join(devices)))


def _string(number: int, value: str) -> bytes:
    return field(number, value.encode())
