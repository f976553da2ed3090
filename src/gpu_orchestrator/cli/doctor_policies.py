"""What `doctor` checks of the admission policies: are all there, in force and of this version, and whom do
they surprise. Where none is installed, as with config/local, nothing fails."""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import msgspec

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import Forbidden, NotFound, NotServed, Operation
from gpu_orchestrator.adapters.kube.transport.base import Request
from gpu_orchestrator.adapters.kube.transport.urls import collection
from gpu_orchestrator.api import names
from gpu_orchestrator.api.admission_policies import files
from gpu_orchestrator.api.admission_policies.policy import Manifest
from gpu_orchestrator.api.gpuworkload import FINAL, GPU_WORKLOADS
from gpu_orchestrator.api.kubernetes import NAMESPACES
from gpu_orchestrator.api.webhook_objects import GROUP, WebhookConfiguration
from gpu_orchestrator.api.wire import Json, Resource
from gpu_orchestrator.cli.findings import Finding

PREFIX = "gpu-orchestrator-"
INSTALL = "kubectl apply -k config/default"


async def findings(client: Client) -> AsyncIterator[Finding]:
    """Yield one finding after the other."""
    policies = await _policies(client, "validatingadmissionpolicies")
    for finding in judged(policies, await _policies(client, "validatingadmissionpolicybindings")):
        yield finding
    if policies:
        for finding in await _priorities(client):
            yield finding


def judged(policies: dict[str, Json] | None, bindings: dict[str, Json] | None) -> Iterator[Finding]:
    """Compare the policies and bindings of the API server with those of this version."""
    if policies is None or bindings is None:
        yield Finding(None, "policies: this identity may not see them")
        return
    if not policies:
        yield Finding(None, f"policies: not installed here, so tenants can take GPUs of others; {INSTALL}")
        return
    shipped = [each.manifests() for each in files.policies()]
    problems = [
        *_told("missing", (one for one, _ in shipped if _name(one) not in policies)),
        *_told("not bound, so nothing is refused", (one for _, one in shipped if not _has(bindings, one))),
        *_told("of another version", (one for one, _ in shipped if _is_other(policies, one))),
    ]
    for each in problems:
        yield Finding(False, f"policies: {each}; install those of this version: {INSTALL}")
    if not problems:
        yield Finding(True, f"policies: {len(shipped)} in force, of this version")
    if limited := sorted(name for name, each in bindings.items() if "matchResources" in each["spec"]):
        yield Finding(None, f"policies: in force in some namespaces only: {', '.join(limited)}")


def _told(what: str, which: Iterable[Manifest]) -> Iterator[str]:
    if found := sorted(_name(each) for each in which):
        yield f"{len(found)} {what} ({', '.join(found)})"


def _has(found: dict[str, Json], wanted: Manifest) -> bool:
    return _name(wanted) in found and _contains(found[_name(wanted)]["spec"], wanted["spec"])


def _is_other(found: dict[str, Json], wanted: Manifest) -> bool:
    return _name(wanted) in found and not _has(found, wanted)


def _contains(found: Any, wanted: Any) -> bool:
    """Return True if all that is wanted was found. The API server adds defaults."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(key in found and _contains(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        return len(found) == len(wanted) and all(map(_contains, found, wanted))
    return bool(found == wanted)


async def _priorities(client: Client) -> list[Finding]:
    """Name the namespaces whose workloads ask for a priority that they are not allowed."""
    workloads = await _items(client, GPU_WORKLOADS)
    asked = {each["metadata"]["namespace"] for each in workloads or () if _wants_high(each)}
    spaces = await _items(client, NAMESPACES) if asked else ()
    if spaces is None:
        return [Finding(None, "priority: this identity may not see which namespaces may use gpu-high")]
    return [
        Finding(
            False,
            f"namespace {each} has GPUWorkloads of high priority, whose next pods are refused; to allow "
            f"them: kubectl label namespace {each} {names.ALLOW_HIGH_PRIORITY}=true",
        )
        for each in sorted(asked - {_name(one) for one in spaces if _is_allowed(one)})
    ]


def _wants_high(workload: Json) -> bool:
    is_over = workload.get("status", {}).get("phase") in FINAL
    return workload["spec"].get("priority") == "high" and not is_over


def _is_allowed(namespace: Json) -> bool:
    labels: dict[str, str] = namespace["metadata"].get("labels", {})
    return labels.get(names.ALLOW_HIGH_PRIORITY) == "true"


async def _policies(client: Client, plural: str) -> dict[str, Json] | None:
    found = await _items(client, Resource(WebhookConfiguration, "", plural, GROUP, namespaced=False))
    return None if found is None else {_name(each): each for each in found if _name(each).startswith(PREFIX)}


async def _items(client: Client, kind: Resource[Any]) -> list[Json] | None:
    """List objects as they are; None if this identity may not, nothing if the server has no such kind."""
    operation = Operation("list", kind.plural, kind.group)
    try:
        answer = await client.send(operation, Request("GET", collection(kind)), idempotent=True)
    except Forbidden:
        return None
    except (NotFound, NotServed):
        return []
    items: list[Json] = msgspec.json.decode(answer)["items"]
    return items


def _name(of: Json) -> str:
    return str(of["metadata"]["name"])
