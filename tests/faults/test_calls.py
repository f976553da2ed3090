"""Verb, resource and name of a request are read as RBAC names them."""

import json

import pytest

from tests.faults import calls
from tests.faults.calls import Call

BODY = json.dumps({"metadata": {"name": "new"}}).encode()
GENERATED = json.dumps({"metadata": {"generateName": "new-"}}).encode()
PODS = "/api/v1/namespaces/a/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/a/leases"


@pytest.mark.parametrize(
    ("request_line", "body", "expected"),
    [
        pytest.param(f"GET {PODS}/p", b"", Call("get", "pods", "p", "a"), id="get"),
        pytest.param(f"GET {PODS}", b"", Call("list", "pods", "", "a"), id="list"),
        pytest.param("GET /api/v1/pods", b"", Call("list", "pods"), id="list of all namespaces"),
        pytest.param(f"GET {PODS}?watch=true", b"", Call("watch", "pods", "", "a"), id="watch"),
        pytest.param(
            f"GET {PODS}?watch=1&fieldSelector=metadata.name=p",
            b"",
            Call("watch", "pods", "p", "a"),
            id="watch of one object",
        ),
        pytest.param(f"GET {PODS}?watch=0", b"", Call("list", "pods", "", "a"), id="not a watch"),
        pytest.param(f"POST {PODS}", BODY, Call("create", "pods", "new", "a"), id="create"),
        pytest.param(f"POST {PODS}", GENERATED, Call("create", "pods", "new-", "a"), id="generated name"),
        pytest.param(f"POST {PODS}", b"k8s\x00", Call("create", "pods", "", "a"), id="protobuf body"),
        pytest.param(
            f"POST {PODS}/p/binding", BODY, Call("create", "pods/binding", "p", "a"), id="subresource"
        ),
        pytest.param(
            f"PUT {LEASES}/l", b"", Call("update", "leases", "l", "a", "coordination.k8s.io"), id="group"
        ),
        pytest.param("PATCH /api/v1/nodes/n", b"", Call("patch", "nodes", "n"), id="no namespace"),
        pytest.param(f"DELETE {PODS}/p", b"", Call("delete", "pods", "p", "a"), id="delete"),
        pytest.param(f"DELETE {PODS}", b"", Call("deletecollection", "pods", "", "a"), id="collection"),
        pytest.param("GET /api/v1/namespaces", b"", Call("list", "namespaces"), id="namespaces"),
        pytest.param("GET /api/v1/namespaces/a", b"", Call("get", "namespaces", "a"), id="a namespace"),
        pytest.param(
            "PUT /api/v1/namespaces/a/finalize",
            b"",
            Call("update", "namespaces/finalize", "a"),
            id="finalize a namespace",
        ),
        pytest.param("GET /readyz", b"", Call("get", "/readyz"), id="not a resource"),
        pytest.param("GET /apis/apps/v1", b"", Call("get", "/apis/apps/v1"), id="discovery"),
    ],
)
def test_request_is_read_as_rbac_call(request_line: str, body: bytes, expected: Call) -> None:
    method, _, target = request_line.partition(" ")
    path, _, query = target.partition("?")
    pairs = dict(part.split("=", 1) for part in query.split("&") if part)
    assert calls.read(method, path, pairs, body) == expected
