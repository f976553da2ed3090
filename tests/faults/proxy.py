"""The fault proxy: sits between one component and the real API server, and injects faults on request.

    with Proxy(kubeconfig) as proxy:
        trigger = proxy.on("patch", "configmaps", name="x", do=Answer(429, retry_after=1))
        ...  # the component uses proxy.kubeconfig
        trigger.wait(10)

It runs in its own thread, so plain tests, async tests and subprocesses can all use it.
"""

import asyncio
import gc
import ssl
import tempfile
import threading
import warnings
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.faults import certificates, kubeconfigs
from tests.faults.faults import Answer, Call, Cut, Delay, DropAnswer, Fault
from tests.faults.server import Sent, Server
from tests.faults.statuses import status
from tests.faults.streams import CutWatch, DropEvents, Gone, HoldWatch, RepeatEvents
from tests.faults.triggers import Trigger, Triggers

__all__ = [
    "Answer",
    "Call",
    "Cut",
    "CutWatch",
    "Delay",
    "DropAnswer",
    "DropEvents",
    "Fault",
    "Gone",
    "HoldWatch",
    "Proxy",
    "RepeatEvents",
    "Sent",
    "Trigger",
    "status",
]


class Proxy:
    """`kubeconfig` points to the proxy. On close, the proxy raises the first error from inside it."""

    kubeconfig: Path
    url: str

    def __init__(self, kubeconfig: Path, *, remember: int = 20_000) -> None:
        self._source = kubeconfig
        self._remember = remember
        self._triggers = Triggers()

    def on(
        self,
        verb: str,
        resource: str,
        *,
        do: Fault,
        name: str | None = None,
        nth: int = 1,
        times: int | None = 1,
    ) -> Trigger:
        """Apply this fault from the nth matching request on, to `times` requests in all."""
        return self._triggers.add(Trigger(verb, resource, name, nth, times, do))

    def heal(self) -> None:
        """Remove all triggers. A held watch stays held until its fault is released."""
        self._triggers.clear()

    def cut_watches(self, resource: str = "*") -> int:
        """Cut every open watch of this resource. Return how many there were."""
        return asyncio.run_coroutine_threadsafe(self._server.cut_watches(resource), self._loop).result(10)

    @property
    def requests(self) -> list[Sent]:
        """The requests, oldest first; only the latest `remember` are kept."""
        return self._server.requests

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="fault-proxy-")
        folder = Path(self._folder.name)
        certificates.write(folder)
        self._server = Server(kubeconfigs.read(self._source, folder), self._triggers, self._remember)
        self._start(_serving_tls(folder))
        self.kubeconfig = folder / "kubeconfig"
        kubeconfigs.write(self._source, self.kubeconfig, server=self.url, ca_file=folder / "ca.crt")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._folder.cleanup()
        _collect_aborted_connections()
        if self._server.errors and error is None:
            raise self._server.errors[0]

    def _start(self, tls: ssl.SSLContext) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(tls, ready)), name="fault-proxy")
        self._thread.start()
        ready.wait()

    async def _run(self, tls: ssl.SSLContext, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with self._server.listen(tls) as port:
            self.url = f"https://127.0.0.1:{port}"
            ready.set()
            await self._stop.wait()


def _collect_aborted_connections() -> None:
    """Collect garbage now. A component killed during a TLS handshake leaves a connection that asyncio does
    not close; its ResourceWarning would otherwise appear in another test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def _serving_tls(folder: Path) -> ssl.SSLContext:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "proxy.crt", folder / "proxy.key")
    return tls
