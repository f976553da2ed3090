"""F12: the ports of the webhook, called by a tenant instead of the API server. Everybody in a cluster may
reach them: an answer says what a pod would become, and stores nothing."""

import json
from typing import NamedTuple

from tests.forgery.calls import Json
from tests.forgery.pods import bare
from tests.support.webhook_process import Webhook


class Knock(NamedTuple):
    method: str
    path: str
    body: bytes = b""
    status: int = 400
    says: str = ""


def review(namespace: str, resource: str = "pods", operation: str = "CREATE") -> bytes:
    """Return what an API server sends for a claimed pod."""
    asked: Json = {
        "uid": "forged",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": resource},
        "operation": operation,
        "namespace": namespace,
        "object": bare(),
    }
    made = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
    return json.dumps(made).encode()


REVIEWS = ("/mutate", "/mutate/hide", "/validate")
KNOCKS = (
    *(
        Knock(method, path, status=405, says="send an AdmissionReview")
        for path in REVIEWS
        for method in ("GET", "PUT")
    ),
    *(Knock("POST", path, body) for path in REVIEWS for body in (b"", b"{}", b"[]", b"{" * 5000, b"\xff")),
    Knock("POST", "/mutate", b"x" * (4 << 20), 413),
    *(
        Knock("GET", path, status=404, says="no such path")
        for path in (
            "/",
            "/metrics",
            "/secrets",
            "/mutate/../secrets",
            "/debug/profile",
            "/%2e%2e/etc/passwd",
        )
    ),
    *(Knock("POST", path, review("kube-system"), 200, '"uid":"forged"') for path in REVIEWS),
    Knock("POST", "/mutate", review("team", "secrets", "DELETE"), 200, '"allowed":true'),
)


def knock(webhook: Webhook) -> list[tuple[Knock, int, str]]:
    """Send each of them, and return what was answered."""
    answers = [(each, *webhook.exchange(each.method, each.path, each.body)) for each in KNOCKS]
    return [(each, status, body.decode()) for each, status, body in answers]
