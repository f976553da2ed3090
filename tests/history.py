"""Everything that happened to some kinds of objects, as the API server told it: one watch per kind, read by a
thread of its own from before the run, put in order by revision afterwards."""

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from controlplane.cluster import Cluster

Json = dict[str, Any]

PATHS = {
    "claims": "/apis/gpu.scheduling/v1/gpuclaims",
    "leases": "/apis/coordination.k8s.io/v1/leases",
    "pods": "/api/v1/pods",
}


@dataclass(frozen=True, slots=True)
class Change:
    """`at` is when we heard of it, by a clock that only moves forward."""

    revision: int
    at: float
    kind: str
    gone: bool
    object: Json


class History:
    """Records while open. Close it, then read `changes`. With a namespace, only what happens there."""

    def __init__(self, cluster: Cluster, namespace: str = "") -> None:
        self._cluster, self._namespace = cluster, namespace
        self._lines: dict[str, list[tuple[float, bytes]]] = {}
        pair = cluster.authority.client("history", ["system:masters"])
        self._tls = ssl.create_default_context(cafile=str(cluster.ca_file))
        self._tls.load_cert_chain(pair.cert, pair.key)
        self._socks: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._stopped = False
        self.start: dict[str, list[Json]] = {}

    def __enter__(self) -> Self:
        for kind, path in self._paths():
            listed = self._cluster.api.request("GET", path)
            self.start[kind] = listed["items"]
            self._lines[kind] = []
            version = listed["metadata"]["resourceVersion"]
            self._threads.append(threading.Thread(target=self._read, args=(kind, path, version), daemon=True))
        for thread in self._threads:
            thread.start()
        return self

    def _paths(self) -> Iterator[tuple[str, str]]:
        for kind, path in PATHS.items():
            head, _, plural = path.rpartition("/")
            yield kind, f"{head}/namespaces/{self._namespace}/{plural}" if self._namespace else path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hear all that has been written until now, then stop listening."""
        if self._stopped:
            return
        time.sleep(0.5)
        self._stopped = True
        for sock in self._socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes the reader, which a plain close does not
        for thread in self._threads:
            thread.join()

    def _read(self, kind: str, path: str, version: str) -> None:
        lines = self._lines[kind]
        while not self._stopped:
            connection = http.client.HTTPSConnection(
                urlsplit(self._cluster.url).netloc, context=self._tls, timeout=2
            )
            try:
                connection.connect()
                sock = connection.sock
                self._socks.append(sock)
                query = f"{path}?watch=true&resourceVersion={version}&timeoutSeconds=3600"
                connection.request("GET", query)
                answer = connection.getresponse()
                with answer:
                    assert answer.status == 200, answer.read()
                    sock.settimeout(None)
                    while line := answer.readline():
                        lines.append((time.monotonic(), line))
            except (OSError, ValueError, http.client.HTTPException):
                pass  # the server was restarted, or we were told to stop
            finally:
                connection.close()
            if lines:
                version = json.loads(lines[-1][1])["object"]["metadata"]["resourceVersion"]
            if not self._stopped:
                time.sleep(0.2)

    @property
    def changes(self) -> list[Change]:
        return sorted(self._all(), key=lambda change: change.revision)

    def _all(self) -> Iterator[Change]:
        for kind, lines in self._lines.items():
            for at, line in lines:
                told = json.loads(line)
                assert told["type"] != "ERROR", told
                found = told["object"]
                revision = int(found["metadata"]["resourceVersion"])
                yield Change(revision, at, kind, told["type"] == "DELETED", found)
