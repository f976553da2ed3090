"""Record every change of pods, leases and claims, as the API server's watches report it.

One thread per kind reads its watch from before the run; the changes are sorted by revision afterwards.
`close` waits until the watches have delivered everything that a list shows, so nothing is missing on a busy
machine.
"""

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from controlplane.cluster import Cluster
from tests.support.patience import PATIENCE_S

Json = dict[str, Any]

PATHS = {
    "claims": "/apis/gpu.scheduling/v1/gpuclaims",
    "leases": "/apis/coordination.k8s.io/v1/leases",
    "pods": "/api/v1/pods",
}


@dataclass(frozen=True, slots=True)
class Change:
    """`at` is when the watch delivered the change, by a monotonic clock."""

    revision: int
    at: float
    kind: str
    gone: bool
    object: Json


class History:
    """Records while open. Close it, then read `changes`. With a namespace, only changes there."""

    def __init__(self, cluster: Cluster, namespace: str = "") -> None:
        self._cluster, self._namespace = cluster, namespace
        self._lines: dict[str, list[tuple[float, bytes]]] = {}
        pair = cluster.authority.client("history", ["system:masters"])
        self._tls = ssl.create_default_context(cafile=str(cluster.ca_file))
        self._tls.load_cert_chain(pair.cert, pair.key)
        self._socks: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._stopped = threading.Event()
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
        """Wait for every change written until now, then stop the watches."""
        if self._stopped.is_set():
            return
        try:
            for kind, path in self._paths():
                self._wait_for_all(kind, self._cluster.api.request("GET", path))
        finally:
            self._stop()

    def _wait_for_all(self, kind: str, listed: Json) -> None:
        """Wait until the watch has delivered everything that the list shows."""
        seen = {each["metadata"]["uid"]: Change(0, 0.0, kind, False, each) for each in self.start[kind]}
        deadline, read, lines = time.monotonic() + PATIENCE_S, 0, self._lines[kind]
        while True:
            new, read = lines[read:], len(lines)
            for line in new:
                change = _change(kind, *line)
                seen[change.object["metadata"]["uid"]] = change
            if not (missing := _missing(listed, seen)):
                return
            assert time.monotonic() < deadline, f"the watch of {kind} lags behind: {missing[:5]}"
            time.sleep(0.05)

    def wait_for(self, kind: str, matches: Callable[[Json], bool], *, count: int, within_s: float) -> float:
        """Wait until the watch has shown `count` objects for which `matches` holds, without a request to the
        server. Return the time of the last one."""
        deadline, uids, lines, next_line = time.monotonic() + within_s, set[str](), self._lines[kind], 0
        while True:
            while next_line < len(lines):
                change = _change(kind, *lines[next_line])
                next_line += 1
                if matches(change.object):
                    uids.add(change.object["metadata"]["uid"])
                if len(uids) == count:
                    return change.at
            assert time.monotonic() < deadline, f"{len(uids)} of {count} {kind} after {within_s:.0f} s"
            time.sleep(0.02)

    def _stop(self) -> None:
        self._stopped.set()
        for sock in self._socks:
            with contextlib.suppress(OSError):
                # This wakes the reader; a plain close does not. Do not call the TLS socket's own shutdown: it
                # drops its keys first, and the reader would take the remaining bytes as plain text.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a watch could not be ended"

    def _read(self, kind: str, path: str, version: str) -> None:
        lines = self._lines[kind]
        while not self._stopped.is_set():
            connection = http.client.HTTPSConnection(
                urlsplit(self._cluster.url).netloc, context=self._tls, timeout=2
            )
            try:
                connection.connect()
                sock = connection.sock
                self._socks.append(sock)
                if self._stopped.is_set():  # `_stop` may have shut the sockets before ours was added
                    return
                query = f"{path}?watch=true&resourceVersion={version}&timeoutSeconds=3600"
                connection.request("GET", query)
                answer = connection.getresponse()
                with answer:
                    assert answer.status == 200, answer.read()
                    sock.settimeout(None)
                    while (line := answer.readline()).endswith(b"\n"):  # an incomplete line was cut off
                        lines.append((time.monotonic(), line))
            except (OSError, ValueError, http.client.HTTPException):
                pass  # the server was restarted, or `_stop` was called
            finally:
                connection.close()
            if lines:
                version = json.loads(lines[-1][1])["object"]["metadata"]["resourceVersion"]
            self._stopped.wait(0.2)

    @property
    def changes(self) -> list[Change]:
        return sorted(self._all(), key=lambda change: change.revision)

    def _all(self) -> Iterator[Change]:
        for kind, lines in self._lines.items():
            for at, line in lines:
                yield _change(kind, at, line)


def _change(kind: str, at: float, line: bytes) -> Change:
    event = json.loads(line)
    assert event["type"] != "ERROR", event
    found = event["object"]
    revision = int(found["metadata"]["resourceVersion"])
    return Change(revision, at, kind, event["type"] == "DELETED", found)


def _missing(listed: Json, seen: dict[str, Change]) -> list[str]:
    """Return what the list shows and the watch has not delivered: objects, versions and deletions."""
    now, there = int(listed["metadata"]["resourceVersion"]), set()
    missing = []
    for each in listed["items"]:
        uid, version = each["metadata"]["uid"], int(each["metadata"]["resourceVersion"])
        there.add(uid)
        if uid not in seen or _version(seen[uid]) < version:
            missing.append(each["metadata"]["name"])
    return missing + [
        f"{change.object['metadata']['name']} gone"
        for uid, change in seen.items()
        if uid not in there and not change.gone and _version(change) <= now
    ]


def _version(change: Change) -> int:
    return int(change.object["metadata"]["resourceVersion"])
