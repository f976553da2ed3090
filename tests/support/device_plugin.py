"""A small device plugin, a process: it offers devices to a real kubelet over gRPC, as NVIDIA's plugin does.

    with device_plugin.offering(real_node.device_plugins, "nvidia.com/gpu", uuids, node_has_them):
        ...  # the node has these devices for pods with limits of nvidia.com/gpu

A container that gets devices finds them in NVIDIA_VISIBLE_DEVICES. The messages are those of
deviceplugin/v1beta1/api.proto of the kubelet.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler
from grpclib.server import Server

from controlplane.process import Process
from gpu_orchestrator.adapters.kubelet import protobuf
from gpu_orchestrator.adapters.kubelet.plain_codec import PlainCodec
from gpu_orchestrator.api.names import NVIDIA_DEVICES_ENV
from tests.support.kubelet_server import field
from tests.support.paths import ROOT

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
def offering(
    folder: Path, resource: str, devices: Sequence[str], is_ready: Callable[[], bool]
) -> Iterator[None]:
    """Offer these devices to the kubelet whose device plugins have their sockets in `folder`, and wait until
    the kubelet has taken them in, which `is_ready` tells."""
    command: list[str | Path] = [sys.executable, "-m", __name__, folder, resource, *devices]
    plugin = Process("device-plugin", command, folder.parent, {"PYTHONPATH": str(ROOT)}, is_ready)
    try:
        plugin.start()
        yield
    finally:
        plugin.stop()


async def serve(folder: Path, resource: str, devices: Sequence[str]) -> None:
    server = Server([DevicePlugin(devices)], codec=PlainCodec())
    await server.start(path=str(folder / OURS))
    await _register(folder, resource)
    await server.wait_closed()


async def _register(folder: Path, resource: str) -> None:
    async with Channel(path=str(folder / KUBELET), codec=PlainCodec()) as channel:
        register: Any = UnaryUnaryMethod(channel, REGISTER, bytes, bytes)
        await register(_string(1, VERSION) + _string(2, OURS) + _string(3, resource))


def _environment(devices: Sequence[str]) -> bytes:
    """Return a ContainerAllocateResponse that sets one variable."""
    return field(1, _string(1, NVIDIA_DEVICES_ENV) + _string(2, ",".join(devices)))


def _string(number: int, value: str) -> bytes:
    return field(number, value.encode())


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
