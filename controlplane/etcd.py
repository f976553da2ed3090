"""What a cluster asks of its etcd past the API server, by etcd's JSON gateway on the unix socket."""

import base64
import http.client
import json
import socket
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from controlplane.errors import ClusterError

SOCKET = "etcd.sock:0"  # etcd requires a port after the name
ROOT = b"/registry/"
OWN = (b"/registry/apiregistration.k8s.io/", b"/registry/leases/kube-system/", b"/registry/masterleases/")
"""What the API server writes by itself at any time."""
AT_ONCE = 100  # etcd takes 128 operations in one transaction

Answer = dict[str, Any]


def compact(folder: Path) -> None:
    revision = _call(folder, "range", key=b"\0")["header"]["revision"]
    _call(folder, "compaction", revision=revision, physical=True)


def keys(folder: Path) -> list[bytes]:
    """Return the keys of all objects."""
    found = _call(folder, "range", key=ROOT, range_end=_after(ROOT), keys_only=True)
    return [base64.b64decode(each["key"]) for each in found["kvs"]]


def remove_others(folder: Path, kept: Collection[bytes]) -> None:
    """Remove every object whose key is not among `kept`, whatever finalizers it has. The API server learns of
    it by its watches."""
    gaps = [{"request_delete_range": _words(gap)} for gap in _gaps(kept)]
    for first in range(0, len(gaps), AT_ONCE):
        _call(folder, "txn", success=gaps[first : first + AT_ONCE])


def _gaps(kept: Collection[bytes]) -> Iterator[Answer]:
    """Yield the ranges of keys between those kept."""
    spans = sorted([(key, key + b"\0") for key in kept] + [(each, _after(each)) for each in OWN])
    start = ROOT
    for key, end in spans:
        if start < key:
            yield {"key": start, "range_end": key}
        start = max(start, end)
    yield {"key": start, "range_end": _after(ROOT)}


def _after(prefix: bytes) -> bytes:
    """Return the end of the range of keys that begin with this."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _words(body: Answer) -> Answer:
    """Return the body as JSON has it: bytes in base64."""
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in body.items()
    }


def _call(folder: Path, call: str, **body: Any) -> Answer:
    path = f"/v3/kv/{call}"
    connection = http.client.HTTPConnection("etcd")
    connection.sock = socket.socket(socket.AF_UNIX)
    with connection.sock as sock:
        sock.connect(str(folder / SOCKET))
        connection.request("POST", path, json.dumps(_words(body)))
        response = connection.getresponse()
        answer: Answer = json.loads(response.read())
    if response.status != http.client.OK:
        raise ClusterError(f"etcd, {path}: {response.status} {answer}")
    return answer
