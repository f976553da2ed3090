"""What `doctor` checks of the webhook: is it configured, will its certificate serve and be trusted, and what
becomes of a pod that asks for a GPU. The last is tried by a dry run, which stores nothing."""

from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import ApiError, Forbidden, NotFound, Operation
from gpu_orchestrator.adapters.kube.transport.base import Request
from gpu_orchestrator.adapters.kube.transport.urls import collection
from gpu_orchestrator.api import names
from gpu_orchestrator.api.pod import PODS
from gpu_orchestrator.api.webhook_objects import (
    MUTATING_WEBHOOKS,
    SECRETS,
    VALIDATING_WEBHOOKS,
    Secret,
    WebhookEntry,
)
from gpu_orchestrator.api.wire import Json
from gpu_orchestrator.cli import times
from gpu_orchestrator.cli.findings import Finding

KINDS = (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
TRIED_IN = "default"
LAST_PART = 5
"""A certificate is replaced after two thirds of its life, so nobody looks after one in its last fifth."""
INSTALL = "kubectl apply -k config/default"
LOOK = f"look at its pods and their log: kubectl get pods -n {names.NAMESPACE}"
BY_POLICY = "ValidatingAdmissionPolicy 'gpu-orchestrator-"


async def findings(client: Client) -> AsyncIterator[Finding]:
    """Yield one finding after the other."""
    try:
        configured = await _configured(client)
    except Forbidden:
        yield Finding(None, "webhook: this identity may not see how it is configured")
        configured = {}
    if len(configured) == 1:
        yield Finding(False, f"webhook: {names.WEBHOOK} is only a {next(iter(configured))} here; {INSTALL}")
    if configured:
        ours = [each for entries in configured.values() for each in entries]
        for finding in await _certificate(client, ours):
            yield finding
    yield await _probed(client, is_configured=bool(configured))


async def _configured(client: Client) -> dict[str, list[WebhookEntry]]:
    """Return our entries of the configurations that are there, by kind. Administrators may have added
    others."""
    found: dict[str, list[WebhookEntry]] = {}
    for kind in KINDS:
        try:
            entries = (await client.get(kind, names.WEBHOOK)).webhooks
        except NotFound:
            continue
        found[kind.kind] = [each for each in entries if each.name.endswith(f".{names.SCHEDULING_GROUP}")]
    return found


# --- the certificate --------------------------------------------------------------------------------------


async def _certificate(client: Client, ours: list[WebhookEntry]) -> list[Finding]:
    try:
        secret = await client.get(SECRETS, names.WEBHOOK_SECRET, names.NAMESPACE)
    except NotFound:
        return [judged_without_secret(ours)]
    except Forbidden:
        return [Finding(None, "webhook: this identity may not see its certificate")]
    return list(judged(secret, ours, datetime.now(UTC)))


def judged_without_secret(ours: list[WebhookEntry]) -> Finding:
    """Say what it means that there is no Secret with the certificate."""
    if all(each.client_config.ca_bundle for each in ours):
        return Finding(
            None, f"webhook: its certificate is not in Secret {names.WEBHOOK_SECRET}, so it was not checked"
        )
    return Finding(
        False, f"webhook: it has made no certificate yet, so the API server cannot call it; {LOOK}"
    )


def judged(secret: Secret, ours: list[WebhookEntry], now: datetime) -> Iterator[Finding]:
    """Say until when the certificate serves, and whether the API server trusts it."""
    try:
        leaf = x509.load_pem_x509_certificates(b64decode(secret.data.get("tls.crt", "")))[0]
    except ValueError:
        yield Finding(
            False,
            f"webhook: Secret {names.WEBHOOK_SECRET} has no certificate in tls.crt; where the webhook makes "
            f"its own, delete it: kubectl delete secret {names.WEBHOOK_SECRET} -n {names.NAMESPACE}",
        )
        return
    yield _aged(leaf, now)
    if wrong := [each.name for each in ours if not _trusts(each.client_config.ca_bundle, leaf)]:
        yield Finding(
            False,
            f"webhook: the API server does not trust its certificate: caBundle of {', '.join(wrong)} has no "
            f"authority that signed it; a replica that runs mends it where the webhook makes its own; {LOOK}",
        )


def _aged(leaf: x509.Certificate, now: datetime) -> Finding:
    begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if now >= end:
        return Finding(False, f"webhook: its certificate expired {times.ago(end, now)}; {LOOK}")
    if (end - now) * LAST_PART < end - begin:
        return Finding(
            False,
            f"webhook: its certificate expires {times.ago(end, now)}, and nothing has renewed it; {LOOK}",
        )
    return Finding(True, f"webhook: its certificate expires {times.ago(end, now)}")


def _trusts(bundle: str, leaf: x509.Certificate) -> bool:
    try:
        return any(_signed(leaf, each) for each in x509.load_pem_x509_certificates(b64decode(bundle)))
    except ValueError:
        return False


def _signed(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return True if this authority made the leaf, or is the leaf itself."""
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return leaf == authority
    return True


# --- what becomes of a pod --------------------------------------------------------------------------------


async def _probed(client: Client, *, is_configured: bool) -> Finding:
    path = f"{collection(PODS, TRIED_IN)}?dryRun=All"
    request = Request("POST", path, msgspec.json.encode(_probe()))
    operation = Operation("create", "pods", namespace=TRIED_IN)
    try:
        made = msgspec.json.decode(await client.send(operation, request, idempotent=True))
    except ApiError as error:
        return judged_refusal(str(error))
    resources = made["spec"]["containers"][0].get("resources", {})
    if names.MILLIGPU in resources.get("requests", {}):
        return Finding(True, "webhook: a pod that asks for a GPU is filled in (dry run)")
    if is_configured:
        return Finding(
            False, f"webhook: it does not answer: a pod that asks for a GPU stays as it is (dry run); {LOOK}"
        )
    return Finding(
        None, f"webhook: not installed here: a pod that asks for a GPU stays as it is (dry run); {INSTALL}"
    )


def judged_refusal(why: str) -> Finding:
    """Say what it means that the pod was refused."""
    if BY_POLICY in why:
        return Finding(
            False,
            f"webhook: it does not answer: a pod that asks for a GPU is refused (dry run); {LOOK}, or "
            f"install it: {INSTALL}",
        )
    return Finding(None, f"webhook: not tried out: {why}")


def _probe() -> Json:
    """Return a pod that the strictest Pod Security lets in."""
    bounds = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    user = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    container = {"name": "main", "image": "doctor", "securityContext": bounds}
    meta = {"generateName": "doctor-", "annotations": {names.GPUS: "1"}}
    return {"metadata": meta, "spec": {"containers": [container], "securityContext": user}}
