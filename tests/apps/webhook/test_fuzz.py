"""Any body at all: no 5xx, the same uid back, and a patch that changes nothing the second time."""

import base64
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import structlog
from hypothesis import given
from msgspec.structs import replace

from gpu_orchestrator.api.admissionreview import AskedReview
from gpu_orchestrator.apps.webhook import app
from tests.support.admission_reviews import Mutations, review
from tests.support.asgi import post
from tests.support.examples import cases
from tests.support.json_patch import applied
from tests.support.pod_json import ANY_JSON, PODS
from tests.support.review_app import Site
from tests.support.scale import Scale

PATHS = ("/mutate", "/mutate/hide", "/validate")
CHUNKS = 10


async def answer_is_sound(site: Any, path: str, body: bytes) -> int:
    """Send a body, and again with the patch applied. Return the status."""
    status, answer = await post(site, path, body)
    if status != 200:
        assert status in (400, 413), (status, body)
        assert len(answer.decode()) > 20, "it says why"
        return status
    asked = msgspec.json.decode(body, type=AskedReview)
    assert asked.request is not None
    found = json.loads(answer)
    response = found["response"]
    assert found["apiVersion"] == "admission.k8s.io/v1"
    assert response["uid"] == asked.request.uid
    assert response["allowed"] or response["status"]["message"]
    if patch := response.get("patch"):
        assert response["patchType"] == "JSONPatch"
        changed = applied(json.loads(base64.b64decode(patch)), asked.request.object)
        once = replace(asked, request=replace(asked.request, object=changed))
        _, again = await post(site, path, msgspec.json.encode(once))
        assert "patch" not in json.loads(again)["response"], body
    return status


@pytest.mark.parametrize("part", range(CHUNKS))
async def test_mutated_reviews_get_a_sound_answer(
    part: int, scale: Scale, figure: Callable[[str], None]
) -> None:
    site, bodies, seen = Site(), Mutations(part), Counter[int]()
    application = site.app()
    times = scale(test=150, accept=5_000)
    with structlog.testing.capture_logs() as logged:
        for number in range(times):
            seen[await answer_is_sound(application, PATHS[number % 3], bodies.body())] += 1
    assert [each for each in logged if each["log_level"] == "error"] == []
    assert seen[200] > times / 3, "most can be read, so that what follows is tried, too"
    assert seen[400] > 0
    if part == 0:
        figure(f"{times * CHUNKS:,} mutated reviews answered: of the first {times:,} {dict(seen)}")


@cases(25)
@given(PODS, PODS, ANY_JSON)
async def test_generated_pods_get_a_sound_answer(new: Any, old: Any, odd: Any) -> None:
    application = Site().app()
    for path in PATHS:
        for made in (
            review(new),
            review(new, operation="UPDATE", before=old, subResource="ephemeralcontainers"),
        ):
            await answer_is_sound(application, path, msgspec.json.encode(made))
        await answer_is_sound(application, path, msgspec.json.encode(review(odd)))
        await answer_is_sound(application, path, msgspec.json.encode(odd))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{}", id="no review"),
        pytest.param(b"[" * 3_000_000, id="3 MB of brackets"),
        pytest.param(b'{"a":' * 500_000 + b"1" + b"}" * 500_000, id="3 MB of objects"),
        pytest.param(b'"' + b"\\" * 3_000_000, id="3 MB of backslashes"),
        pytest.param(b'"' * 3_000_000, id="3 MB of quotes"),
        pytest.param(b"\xff" * 100, id="no text"),
        pytest.param(b"9" * 3_000_000, id="3 MB of digits"),
    ],
)
async def test_large_nonsense_is_refused(body: bytes) -> None:
    assert await answer_is_sound(Site().app(), "/mutate", body) == 400


async def test_large_pod_is_filled_in() -> None:
    env = [{"name": f"A{number}", "value": "x" * 50} for number in range(30_000)]
    env.insert(15_000, {"name": "CUDA_VISIBLE_DEVICES", "value": "all"})
    made = {"metadata": {"annotations": {"gpu.scheduling/gpus": "1"}}, "spec": {"containers": [{"env": env}]}}
    body = json.dumps(review(made)).encode()
    assert 2_000_000 < len(body) < app.LARGEST_BYTES
    assert await answer_is_sound(Site().app(), "/mutate", body) == 200


async def test_body_beyond_the_limit_is_too_large() -> None:
    for size in (app.LARGEST_BYTES + 1, app.DISCARDED_BYTES + 1):
        assert await answer_is_sound(Site().app(), "/mutate", b" " * size) == 413
