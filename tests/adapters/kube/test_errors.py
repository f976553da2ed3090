"""Error answers of the server become typed errors that say what to do."""

import json
from typing import Any

import pytest

from gpu_orchestrator.adapters.kube import errors
from gpu_orchestrator.adapters.kube.errors import Operation, from_answer

OPERATION = Operation("patch", "gpuworkloads/status", "gpu.warp.dev", "train", "ml")


def status(code: int, reason: str = "", message: str = "no", **details: object) -> bytes:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    ("code", "body", "kind"),
    [
        pytest.param(400, status(400), errors.BadRequest, id="bad request"),
        pytest.param(401, status(401), errors.Unauthorized, id="unauthorized"),
        pytest.param(403, status(403), errors.Forbidden, id="forbidden"),
        pytest.param(404, status(404, name="train"), errors.NotFound, id="no such object"),
        pytest.param(404, b"404 page not found\n", errors.NotServed, id="no such kind"),
        pytest.param(
            404,
            status(404, message="the server could not find the requested resource"),
            errors.NotServed,
            id="no such kind, as a Status",
        ),
        pytest.param(409, status(409, "Conflict"), errors.Conflict, id="conflict"),
        pytest.param(409, status(409, "AlreadyExists"), errors.AlreadyExists, id="already exists"),
        pytest.param(410, status(410, "Expired"), errors.Gone, id="gone"),
        pytest.param(422, status(422, "Invalid"), errors.Invalid, id="invalid"),
        pytest.param(429, status(429), errors.Throttled, id="throttled"),
        pytest.param(
            429,
            status(429, causes=[{"reason": "DisruptionBudget"}]),
            errors.BlockedByBudget,
            id="disruption budget",
        ),
        pytest.param(500, status(500), errors.Unavailable, id="internal error"),
        pytest.param(413, status(413), errors.TooLarge, id="body too large"),
        pytest.param(
            500,
            status(500, message="etcdserver: request is too large"),
            errors.TooLarge,
            id="too large for etcd",
        ),
        pytest.param(503, b"upstream connect error", errors.Unavailable, id="from a load balancer"),
        pytest.param(504, b"\xff\xfe", errors.Unavailable, id="not text"),
    ],
)
def test_status_code_maps_to_error_type(code: int, body: bytes, kind: type[errors.ApiError]) -> None:
    assert type(from_answer(OPERATION, code, body)) is kind


def test_conflicts_are_permanent_and_throttling_is_temporary() -> None:
    assert isinstance(from_answer(OPERATION, 409, status(409)), errors.Permanent)
    assert isinstance(from_answer(OPERATION, 429, status(429)), errors.Temporary)


@pytest.mark.parametrize(
    ("header", "details", "delay_s"),
    [
        pytest.param("7", {}, 7.0, id="header"),
        pytest.param(None, {"retryAfterSeconds": 3}, 3.0, id="details"),
        pytest.param("2", {"retryAfterSeconds": 3}, 2.0, id="the header wins"),
        pytest.param("Wed, 21 Oct 2026 07:28:00 GMT", {}, 1.0, id="a date"),
        pytest.param(None, {}, 0.0, id="neither"),
    ],
)
def test_retry_after(header: str | None, details: dict[str, Any], delay_s: float) -> None:
    assert from_answer(OPERATION, 429, status(429, **details), header).delay_s == delay_s


def test_forbidden_names_the_missing_rbac_rule() -> None:
    message = 'gpuworkloads.gpu.warp.dev "train" is forbidden: User "bob" cannot patch resource'
    assert str(from_answer(OPERATION, 403, status(403, message=message))) == (
        f"cannot patch gpuworkloads.gpu.warp.dev/status ml/train: {message} (403); "
        "grant verb 'patch' on 'gpuworkloads/status' of API group gpu.warp.dev in a Role or ClusterRole"
    )


def test_quota_refusal_does_not_advise_rbac() -> None:
    refused = from_answer(OPERATION, 403, status(403, message='pods "a" is forbidden: exceeded quota'))
    assert "grant verb" not in str(refused)


def test_missing_kind_advises_to_install_the_crd() -> None:
    assert "kubectl apply -k config/crd" in str(from_answer(OPERATION, 404, b"404 page not found"))


def test_message_is_one_line() -> None:
    assert "\n" not in str(from_answer(OPERATION, 500, status(500, message="one\ntwo\n")))
