"""Read the API server's audit log: user, verb, resource and status code of each request."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: None
  nonResourceURLs: ["/healthz*", "/readyz*", "/livez*"]
- level: Metadata
"""


@dataclass(frozen=True, slots=True)
class Entry:
    user: str
    verb: str
    resource: str  # "pods", "pods/binding", or the path if the request has no resource
    namespace: str
    name: str
    code: int
    took_s: float = 0.0  # from the request's arrival to the end of its response
    is_forbidden: bool = False  # by its roles; a policy or a namespace that ends refuses with the same code
    why: str = ""  # the message of a refusal
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Audit:
    """The requests that are logged behind the first `start` bytes of the file."""

    file: Path
    start: int = 0

    @property
    def size(self) -> int:
        return self.file.stat().st_size if self.file.exists() else 0

    def entries(self, naming: str = "") -> Iterator[Entry]:
        """Yield every finished request so far whose line has this text, such as a user or a namespace: only
        these are decoded, which matters in a log of many tests. A watch appears when it ends."""
        if not self.file.exists():
            return
        text = naming.encode()
        with self.file.open("rb") as lines:
            lines.seek(self.start)
            for line in lines:
                if not line.endswith(b"\n"):
                    return  # the server is still writing this line
                if text in line:
                    yield _entry(line)

    def requests(self, naming: str = "") -> Counter[tuple[str, str, str]]:
        """Count the requests by (user, verb, resource)."""
        return Counter((entry.user, entry.verb, entry.resource) for entry in self.entries(naming))


def _entry(line: bytes) -> Entry:
    event = json.loads(line)
    target = event.get("objectRef", {})
    resource = "/".join(part for part in (target.get("resource"), target.get("subresource")) if part)
    return Entry(
        user=event["user"].get("username", ""),
        verb=event["verb"],
        resource=resource or event["requestURI"],
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        code=event.get("responseStatus", {}).get("code", 0),
        took_s=_between(event["requestReceivedTimestamp"], event["stageTimestamp"]),
        is_forbidden=event.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid",
        why=event.get("responseStatus", {}).get("message", ""),
        is_dry_run="dryRun=All" in event["requestURI"],
    )


def _between(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
