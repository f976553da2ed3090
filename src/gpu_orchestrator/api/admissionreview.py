"""AdmissionReview (`admission.k8s.io/v1`): what the API server asks a webhook, and what it is answered."""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of a mutable default

from typing import Any

from gpu_orchestrator.api.wire import Wire

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
JSON_PATCH = "JSONPatch"


class AdmittedKind(Wire, frozen=True, gc=False):
    group: str = ""
    version: str = ""
    kind: str = ""


class AdmissionRequest(Wire, frozen=True, gc=False):
    """`object` and `old_object` are as somebody wrote them, of any type."""

    uid: str
    kind: AdmittedKind = AdmittedKind()
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""
    object: Any = None
    old_object: Any = None


class AskedReview(Wire, frozen=True, gc=False):
    api_version: str = ""
    kind: str = ""
    request: AdmissionRequest | None = None


class Result(Wire, frozen=True, gc=False, omit_defaults=False):
    """Why a request is denied. `code` and `reason` are those of the answer that the user gets."""

    message: str
    code: int = 403
    reason: str = "Forbidden"


class AdmissionResponse(Wire, frozen=True, gc=False):
    """`patch` is encoded JSON; msgspec writes bytes as base64, as the API server expects it."""

    uid: str
    allowed: bool
    patch: bytes = b""
    patch_type: str = ""
    status: Result | None = None
    warnings: list[str] = []


class AnsweredReview(Wire, frozen=True, gc=False, omit_defaults=False):
    response: AdmissionResponse
    api_version: str = API_VERSION
    kind: str = KIND
