"""Strangers' requests: made from the OpenAPI document, true to it and not, and good bodies broken on the way.

Whatever comes, no answer is a 5xx, and what was refused left nothing behind in the store.
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

from gpu_orchestrator.adapters.store.valkey.embedded import Embedded
from gpu_orchestrator.adapters.store.valkey.resp import Client
from tests.support.fleet import Fleet
from tests.support.scale import Scale

pytestmark = pytest.mark.real

# What moves by itself, or is meant to remember a refusal: that it is there is all that counts.
RESTLESS = re.compile(
    rb":(leader|apis|fence|news|leases|stats|events|watch|audit.*|rate:.*|h:.*|[wd]:.*|used:.*)$"
)
ENDLESS = "text/event-stream"
PATIENT = {"wait", "timeout"}
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
GOOD: dict[str, dict[str, Any]] = {
    "/tasks": TASK,
    "/tasks/batch": {"tasks": [TASK, TASK]},
    "/workers": {"type": "Hello", "name": "w"},
}
SPITEFUL = (
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


class Stranger:
    """Asks one thing after the other and looks into the store after each refusal."""

    def __init__(self, fleet: Fleet, key: str, look: Callable[[], Any]) -> None:
        self._fleet, self._look = fleet, look
        self._headers = {"Authorization": f"Bearer {key}"}
        self._before = look()
        self.statuses: Counter[int] = Counter()

    def ask(self, case: "Case[Any]") -> None:
        """A request made from the document, but for its patience."""
        for name in PATIENT & set(case.query or {}):
            if isinstance(case.query[name], int | float):
                case.query[name] = min(case.query[name], 0.01)
        if case.headers:
            case.headers.pop("Authorization", None)
        answer = case.call(base_url=self._fleet.url, headers=self._headers, timeout=30)
        self._judge(answer.status_code, f"{case.method} {case.formatted_path} {case.body!r}")

    def post(self, path: str, body: bytes, kind: str) -> None:
        """Bytes that no client would send."""
        line = http.client.HTTPConnection("127.0.0.1", self._fleet.port, timeout=30)
        line.request("POST", path, body, {**self._headers, "Content-Type": kind})
        answer = line.getresponse()
        answer.read()
        line.close()
        self._judge(answer.status, f"POST {path} {body[:200]!r}")

    def _judge(self, status: int, asked: str) -> None:
        self.statuses[status] += 1
        assert status < 500, f"{status} for {asked}"
        after = self._look()
        assert status < 400 or after == self._before, f"{status} left a trace: {asked}"
        self._before = after


@st.composite
def broken(draw: st.DrawFn, good: dict[str, Any]) -> bytes:
    """A good body with some bytes changed, cut, doubled or put elsewhere; or one of the spiteful ones."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(SPITEFUL))
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
    """One field has a value of another kind."""
    anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers())
    return {**good, draw(st.sampled_from(sorted(good))): draw(anything)}


async def test_no_request_breaks_the_server_and_a_refused_one_leaves_no_trace(
    tmp_path: Path, scale: Scale, figure: Callable[[str], None]
) -> None:
    requests, fixed = scale(test=(600, True), accept=(10_000, False))
    async with Fleet(tmp_path / "fleet") as fleet:
        loop = asyncio.get_running_loop()
        store = Client(Embedded(fleet.folder / "data" / "store").url, answer_s=10)
        _, document = await fleet.call("GET", "/openapi.json")

        def look() -> Any:
            return asyncio.run_coroutine_threadsafe(_contents(store), loop).result(30)

        stranger = await asyncio.to_thread(Stranger, fleet, fleet.key, look)
        await asyncio.to_thread(_from_document, document, stranger, requests // 2, fixed=fixed)
        await asyncio.to_thread(_from_bodies, stranger, requests // 2, fixed=fixed)
        await store.close()
        assert "Traceback" not in (fleet.folder / "server.log").read_text()
    assert sum(stranger.statuses.values()) >= requests
    figure(f"{sum(stranger.statuses.values()):,} requests answered {dict(sorted(stranger.statuses.items()))}")


def _from_document(document: dict[str, Any], stranger: Stranger, requests: int, *, fixed: bool) -> None:
    found = schemathesis.openapi.from_dict(document).get_all_operations()
    operations = [each.ok() for each in found if isinstance(each, Ok)]
    finite = [each for each in operations if not _is_endless(document, each)]
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    each_gets = -(-requests // (len(finite) * len(modes)))
    for operation in finite:
        for mode in modes:
            cases = operation.as_strategy(generation_mode=mode)
            _repeat(cases, stranger.ask, each_gets, fixed=fixed)


def _is_endless(document: dict[str, Any], operation: "APIOperation[Any, Any, Any, Any]") -> bool:
    declared = document["paths"][operation.path][operation.method]["responses"]
    return any(ENDLESS in each.get("content", {}) for each in declared.values())


def _from_bodies(stranger: Stranger, requests: int, *, fixed: bool) -> None:
    kinds = st.sampled_from(["application/json", "text/plain", "application/x-www-form-urlencoded", ""])
    for path, good in GOOD.items():

        def post(asked: tuple[bytes, str], path: str = path) -> None:
            stranger.post(path, *asked)

        _repeat(st.tuples(broken(good), kinds), post, -(-requests // len(GOOD)), fixed=fixed)


def _repeat(asked: st.SearchStrategy[Any], ask: Callable[[Any], None], times: int, *, fixed: bool) -> None:
    @settings(
        max_examples=times,
        derandomize=fixed,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(asked)
    def run(one: Any) -> None:
        ask(one)

    run()


async def _contents(store: Client) -> dict[bytes, Any]:
    """Everything that is kept."""
    names = sorted(await store.execute("KEYS", "*"))
    kept = [name for name in names if not RESTLESS.search(name) or b":w:" in name]
    return {name: b":w:" in name or await store.execute("DUMP", name) for name in kept}
