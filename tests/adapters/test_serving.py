"""Metrics, probes and profile, requested over real sockets."""

import asyncio
import time
from typing import Any

import aiohttp
import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, Counter

from gpu_orchestrator.adapters import serving
from gpu_orchestrator.adapters.small_server import Request


async def get(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_metrics_show_what_was_counted() -> None:
    registry = CollectorRegistry()
    Counter("things", "Things seen", registry=registry).inc(3)
    async with serving.serve("127.0.0.1:0", serving.metrics_routes(registry)) as port:
        status, text = await get(port, "/metrics")
    assert status == 200
    assert "things_total 3.0" in text


async def test_scrapes_without_a_pause_take_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pod of the cluster can ask for them, and the process has other work."""
    clock, cost_s, made = FakeClock(), 0.05, list[float]()

    def generate(registry: CollectorRegistry) -> bytes:
        clock.now += cost_s
        made.append(clock.now)
        return str(len(made)).encode()

    monkeypatch.setattr(serving, "elapsed_s", lambda: clock.now)
    monkeypatch.setattr(time, "thread_time", lambda: clock.now)
    monkeypatch.setattr(prometheus_client, "generate_latest", generate)
    metrics = serving.metrics_routes(CollectorRegistry())["/metrics"]
    for _ in range(1000):
        answer = await metrics(Request("/metrics", {}, ""))
        clock.now += 0.01
    assert len(made) * cost_s <= 0.11 * clock.now
    assert answer.text == str(len(made)).encode()


class FakeClock:
    now = 100.0


async def test_probe_reports_what_is_wrong() -> None:
    trouble = {"ready": "caches not synced"}
    routes = serving.probe_routes(live=lambda: "", ready=lambda: trouble["ready"])
    async with serving.serve("127.0.0.1:0", routes) as port:
        assert await get(port, "/healthz") == (200, "ok")
        assert await get(port, "/readyz") == (503, "caches not synced")
        trouble["ready"] = ""
        assert await get(port, "/readyz") == (200, "ok")


async def test_profile_names_the_busy_function() -> None:
    async with serving.serve("127.0.0.1:0", serving.metrics_routes(CollectorRegistry())) as port:
        profile = asyncio.create_task(get(port, "/debug/profile?seconds=0.3"))
        while not profile.done():
            burn_a_little()
            await asyncio.sleep(0)
        status, text = await profile
    assert status == 200
    assert "burn_a_little" in text


def burn_a_little() -> None:
    sum(number * number for number in range(20_000))


@pytest.mark.parametrize("seconds", ["0", "-1", "61", "nan", "soon"])
async def test_bad_profile_duration_is_refused(seconds: str) -> None:
    async with serving.serve("127.0.0.1:0", serving.metrics_routes(CollectorRegistry())) as port:
        status, text = await get(port, f"/debug/profile?seconds={seconds}")
    assert (status, text) == (400, f"seconds={seconds}: give a number above 0 and up to 60\n")


async def test_zero_means_no_server() -> None:
    async with serving.serve("0", {}) as port:
        assert port == 0


async def test_port_in_use_is_explained() -> None:
    async with serving.serve("127.0.0.1:0", {}) as port:
        with pytest.raises(
            serving.BadAddress, match=f"cannot listen on 127.0.0.1 port {port}: .*; give another"
        ):
            async with serving.serve(f"127.0.0.1:{port}", {}):
                raise AssertionError("two servers on one port")


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        pytest.param("127.0.0.1:8080", ("127.0.0.1", 8080), id="host and port"),
        pytest.param(":8080", (None, 8080), id="every interface"),
        pytest.param("[::1]:8080", ("::1", 8080), id="IPv6"),
        pytest.param("0", (None, None), id="none"),
    ],
)
def test_addresses(address: str, parsed: Any) -> None:
    assert serving.parse_address(address) == parsed


@pytest.mark.parametrize("address", ["8080", "localhost", "host:http", "host:99999", ""])
def test_bad_address_is_explained(address: str) -> None:
    with pytest.raises(serving.BadAddress, match=f"'{address}' is not an address; write host:port"):
        serving.parse_address(address)
