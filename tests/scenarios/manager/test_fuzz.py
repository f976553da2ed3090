"""Fuzz the API: requests from the OpenAPI document, valid and invalid, and good bodies with broken bytes.

No request may get a 5xx, and a refused request may change nothing in the store.
"""

import asyncio
import http.client
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.core.result import Ok

from gpu_orchestrator.adapters.store.valkey.client import Client
from gpu_orchestrator.adapters.store.valkey.embedded import Embedded
from tests.support.fleet import Fleet
from tests.support.scale import Scale

pytestmark = pytest.mark.real

# Keys that change by themselves or record refusals: their contents are not compared.
VOLATILE = re.compile(
    rb":(leader|apis|fence|news|leases|stats|events|watch|audit.*|rate:.*|keys:used|h:.*|[wd]:.*|used:.*)$"
)
ENDLESS = "text/event-stream"
TIMEOUTS = {"wait", "timeout"}
TASK = {
    "task_type": "echo",
    "model_name": "m",
    "parameters": {"text": "hello", "n": [1, 2.5, None, True]},
    "priority": "high",
    "timeout": 30,
    "resources": {"gpu_memory": "2GB", "gpus": 1, "vendor": "nvidia"},
    "max_retries": 2,
    "idempotency_key": "once",
    "labels": {"team": "a"},
}
SELECTION = {
    "status": ["queued", "failed"],
    "task_type": "echo",
    "labels": {"team": "a"},
    "worker_id": "w",
    "owner": "admin",
    "all": True,
}
GOOD: dict[str, dict[str, Any]] = {
    "/tasks": TASK,
    "/tasks/batch": {"tasks": [TASK, TASK]},
    "/tasks/cancel": SELECTION,
    "/tasks/retry": {"task_ids": ["0" * 32, "abcd"]},
    "/workers": {"type": "Hello", "name": "w"},
}
HOSTILE = (
    b"",
    b"null",
    b"[]",
    b"{}",
    b"NaN",
    b'{"task_type":' + b"[" * 5_000,
    b'{"task_type": "\\ud800"}',
    b'{"task_type": "echo", "priority": ' + b"9" * 5_000 + b"}",
    b'{"task_type": "echo", "timeout": 1e999}',
    b'{"task_type": "echo", "timeout": -0.0}',
    b'{"task_type": "a\\u0000b"}',
    b"\x80\x04\x95\x0c\x00\x00\x00\x00\x00\x00\x00\x8c\x08builtins\x94.",
    b"\xff\xfe{\x00}\x00",
)


class Fuzzer:
    """Sends one request after another, and compares the store after each refusal."""

    def __init__(self, fleet: Fleet, key: str, read_store: Callable[[], Any]) -> None:
        self._fleet, self._read_store = fleet, read_store
        self._headers = {"Authorization": f"Bearer {key}"}
        self._before = read_store()
        self.statuses: Counter[int] = Counter()

    def send(self, case: "Case[Any]") -> None:
        """Send a request made from the document, with short timeouts."""
        for name in TIMEOUTS & set(case.query or {}):
            if isinstance(case.query[name], int | float):
                case.query[name] = min(case.query[name], 0.01)
        if case.headers:
            case.headers.pop("Authorization", None)
        answer = case.call(base_url=self._fleet.url, headers=self._headers, timeout=30)
        self._check(answer.status_code, f"{case.method} {case.formatted_path} {case.body!r}")

    def post(self, path: str, body: bytes, kind: str) -> None:
        """Send bytes that no client would send."""
        connection = http.client.HTTPConnection("127.0.0.1", self._fleet.port, timeout=30)
        connection.request("POST", path, body, {**self._headers, "Content-Type": kind})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        self._check(answer.status, f"POST {path} {body[:200]!r}")

    def _check(self, status: int, request: str) -> None:
        self.statuses[status] += 1
        assert status < 500, f"{status} for {request}"
        after = self._read_store()
        assert status < 400 or after == self._before, f"{status} changed the store: {request}"
        self._before = after


@st.composite
def broken(draw: st.DrawFn, good: dict[str, Any]) -> bytes:
    """Return a good body with some bytes changed, cut, doubled or inserted; or one of the hostile ones."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(HOSTILE))
    body = bytearray(json.dumps(draw(st.sampled_from([good, _odd(good, draw)]))).encode())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(body) - 1, 0)))
        match draw(st.integers(0, 3)):
            case 0:
                body[at : at + 1] = draw(st.binary(min_size=1, max_size=3))
            case 1:
                del body[at : at + draw(st.integers(1, 40))]
            case 2:
                body[at:at] = body[at : at + draw(st.integers(1, 40))]
            case _:
                body[at:at] = draw(st.sampled_from([b"null", b'"', b"{", b"]", b"-1", b"1e400", b"\\u0000"]))
    return bytes(body)


def _odd(good: dict[str, Any], draw: st.DrawFn) -> dict[str, Any]:
    """Return the body with a value of another type in one field."""
    anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers())
    return {**good, draw(st.sampled_from(sorted(good))): draw(anything)}


async def test_no_request_causes_5xx_and_refused_ones_change_nothing(
    tmp_path: Path, scale: Scale, figure: Callable[[str], None]
) -> None:
    requests, fixed = scale(test=(300, True), accept=(10_000, False))
    async with Fleet(tmp_path / "fleet") as fleet:
        loop = asyncio.get_running_loop()
        store = Client(Embedded(fleet.folder / "data" / "store").url, answer_s=10)
        _, document = await fleet.call("GET", "/openapi.json")

        def read_store() -> Any:
            return asyncio.run_coroutine_threadsafe(_contents(store), loop).result(30)

        fuzzer = await asyncio.to_thread(Fuzzer, fleet, fleet.key, read_store)
        await asyncio.to_thread(_from_document, document, fuzzer, requests // 2, fixed=fixed)
        await asyncio.to_thread(_from_bodies, fuzzer, requests // 2, fixed=fixed)
        await store.close()
        assert "Traceback" not in (fleet.folder / "server.log").read_text()
    assert sum(fuzzer.statuses.values()) >= requests
    figure(f"{sum(fuzzer.statuses.values()):,} requests answered {dict(sorted(fuzzer.statuses.items()))}")


def _from_document(document: dict[str, Any], fuzzer: Fuzzer, requests: int, *, fixed: bool) -> None:
    found = schemathesis.openapi.from_dict(document).get_all_operations()
    operations = [each.ok() for each in found if isinstance(each, Ok)]
    finite = [each for each in operations if not _is_endless(document, each)]
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    each_gets = -(-requests // (len(finite) * len(modes)))
    for operation in finite:
        for mode in modes:
            cases = operation.as_strategy(generation_mode=mode)
            _repeat(cases, fuzzer.send, each_gets, fixed=fixed)


def _is_endless(document: dict[str, Any], operation: "APIOperation[Any, Any, Any, Any]") -> bool:
    declared = document["paths"][operation.path][operation.method]["responses"]
    return any(ENDLESS in each.get("content", {}) for each in declared.values())


def _from_bodies(fuzzer: Fuzzer, requests: int, *, fixed: bool) -> None:
    kinds = st.sampled_from(["application/json", "text/plain", "application/x-www-form-urlencoded", ""])
    for path, good in GOOD.items():

        def post(body_and_kind: tuple[bytes, str], path: str = path) -> None:
            fuzzer.post(path, *body_and_kind)

        _repeat(st.tuples(broken(good), kinds), post, -(-requests // len(GOOD)), fixed=fixed)


def _repeat(cases: st.SearchStrategy[Any], send: Callable[[Any], None], times: int, *, fixed: bool) -> None:
    @settings(
        max_examples=times,
        derandomize=fixed,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def run(one: Any) -> None:
        send(one)

    run()


async def _contents(store: Client) -> dict[bytes, Any]:
    """Return everything in the store, without the contents of volatile keys."""
    names = sorted(await store.execute("KEYS", "*"))
    kept = [name for name in names if not VOLATILE.search(name) or b":w:" in name]
    return {name: b":w:" in name or await store.execute("DUMP", name) for name in kept}
