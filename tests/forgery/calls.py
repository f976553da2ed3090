"""One request to the API server as data, so that hundreds of them make a table."""

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

TEAM = "team"
"""Namespace of the tenant."""
NEIGHBOUR = "neighbour"
"""Namespace of somebody else."""
SYSTEM = "gpu-orchestrator-system"

PODS = f"/api/v1/namespaces/{TEAM}/pods"
PLAIN = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class Call:
    """`says` are words of the refusal; ` | ` stands between those of several policies, any of which may be
    first. `is_repaired`: webhook and mutating policy may set right what is wrong,
    instead of the refusal. `is_dropped`: the API server ignores this part of the request by itself."""

    id: str
    method: str
    path: str
    body: Any
    says: str = ""
    user: str = TENANT
    content_type: str = PLAIN
    is_repaired: bool = False
    is_dropped: bool = False

    @property
    def url(self) -> str:
        """Return the address of a dry run: all of admission, and nothing is stored."""
        manager = "&fieldManager=forger&force=true" if self.content_type == APPLY else ""
        return f"{self.path}{'&' if '?' in self.path else '?'}dryRun=All{manager}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`answer` is the object as it would be stored, or None with the reason of the refusal."""

    answer: Json | None
    why: str = ""
    status: int = 200


def create(id_: str, body: Json, says: str = "", *, user: str = TENANT, is_repaired: bool = False) -> Call:
    """Return the creation of a pod."""
    return Call(id_, "POST", PODS, body, says, user, is_repaired=is_repaired)


def merge(id_: str, path: str, body: Json, says: str = "", **more: Any) -> Call:
    return Call(id_, "PATCH", path, body, says, content_type=MERGE, **more)


def annotate(value: str | None, key: str) -> Json:
    return {"metadata": {"annotations": {key: value}}}
