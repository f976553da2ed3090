"""A TCP load balancer in front of processes of this machine, in place of a Service: each connection goes to
the next backend. A backend that is taken out gets no new connections; open ones go on."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from controlplane import relay
from tests.support.operator_process import eventually


class Forwarder:
    def __init__(self, *backends: int) -> None:
        self._backends = list(backends)
        self._open = dict.fromkeys(backends, 0)
        self._clients: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listening.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._thread.join(10)
        self._listening.close()

    def take_out(self, backend: int) -> None:
        """Send this backend no new connections, and wait until its last one is closed."""
        with self._lock:
            self._backends.remove(backend)
        eventually(lambda: self._open[backend] == 0, "the last connection of the backend is closed")

    def break_all(self) -> None:
        """Break all open connections."""
        with self._lock:
            for client in self._clients:
                with suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)

    def put_in(self, backend: int) -> None:
        with self._lock:
            self._open.setdefault(backend, 0)
            self._backends.append(backend)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            with self._lock:
                backend = self._backends.pop(0)
                self._backends.append(backend)
                self._open[backend] += 1
            threading.Thread(target=self._serve, args=(client, backend), daemon=True).start()

    def _serve(self, client: socket.socket, backend: int) -> None:
        with self._lock:
            self._clients.add(client)
        try:
            with client, suppress(OSError), socket.create_connection(("127.0.0.1", backend)) as server:
                relay.join(client, server)
        finally:
            with self._lock:
                self._clients.discard(client)
                self._open[backend] -= 1
