"""GPU alerts: which readings raise one, and that each is raised once and cleared once."""

from typing import Any

import pytest

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.fleet import alerts
from gpu_orchestrator.apps.manager.fleet.alerts import Thresholds
from tests.apps.manager.conftest import Site
from tests.support import scripted_worker
from tests.support.scripted_worker import ScriptedWorker

LIMITS = Thresholds(temperature_c=85, memory_part=0.9)


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        pytest.param(scripted_worker.reading(0, temperature_c=79), [], id="cool"),
        pytest.param(scripted_worker.reading(0, temperature_c=85), [("temperature", 1)], id="hot"),
        pytest.param(
            scripted_worker.reading(0, temperature_c=81), [("temperature", 0)], id="keeps an alert active"
        ),
        pytest.param(scripted_worker.reading(0, gib=100, others_gib=90), [("memory", 1)], id="full"),
        pytest.param(scripted_worker.reading(0, gib=100, others_gib=86), [("memory", 0)], id="nearly full"),
        pytest.param(scripted_worker.reading(0, ecc_errors=2), [("ecc", 1)], id="memory errors"),
        pytest.param(
            scripted_worker.reading(0, xid=79, problem="XID 79"), [("xid", 1)], id="one alert for a fault"
        ),
        pytest.param(scripted_worker.reading(0, problem="lost"), [("problem", 1)], id="another problem"),
        pytest.param(session.Reading(0, 0, 0), [], id="no values"),
    ],
)
def test_readings_that_raise_alerts(reading: session.Reading, expected: list[tuple[str, int]]) -> None:
    assert [(each.kind, each.raises) for each in alerts.of([reading], LIMITS)] == expected


async def alert_events(site: Site) -> list[tuple[Any, ...]]:
    _, page = await site.call("GET", "/cluster/events?after=0&limit=1000")
    found = [each["data"] for each in page["events"] if each["event"] == "gpu_alert"]
    return [(each["device"], each["kind"], each["state"]) for each in found]


async def report(worker: ScriptedWorker, *readings: session.Reading) -> None:
    """Send a report and wait until it is stored: the server answers the renewal after it."""
    await worker.send(session.Report(readings))
    await worker.send(session.Renew(1))
    await worker.receive(session.Renewed)


@pytest.mark.real
async def test_alert_is_raised_once_and_cleared_once(site: Site) -> None:
    worker = await site.join()
    for celsius in (60, 86, 90, 84, 81):
        await report(worker, scripted_worker.reading(0, temperature_c=celsius), scripted_worker.reading(1))
    assert await alert_events(site) == [(0, "temperature", "raised")]
    _, shown = await site.call("GET", "/workers/w")
    (alert,) = shown["gpu_info"][0]["alerts"]
    assert (alert["kind"], alert["value"]) == ("temperature", 81)
    assert shown["gpu_info"][1]["alerts"] == []
    async with site.http.get("/metrics") as answer:
        assert 'gpu_alert{device="0",kind="temperature",worker="w"} 1.0' in await answer.text()
    await report(worker, scripted_worker.reading(0, temperature_c=79), scripted_worker.reading(1))
    assert await alert_events(site) == [(0, "temperature", "raised"), (0, "temperature", "cleared")]
    _, shown = await site.call("GET", "/workers/w")
    assert shown["gpu_info"][0]["alerts"] == []


@pytest.mark.real
async def test_removed_worker_has_its_alerts_cleared(site: Site) -> None:
    worker = await site.join()
    await report(worker, scripted_worker.reading(0, ecc_errors=1), scripted_worker.reading(1, problem="lost"))
    assert (await site.call("DELETE", "/workers/w?drain=false"))[0] == 200
    found = await alert_events(site)
    assert sorted(found[:2]) == [(0, "ecc", "raised"), (1, "problem", "raised")]
    assert sorted(found[2:]) == [(0, "ecc", "cleared"), (1, "problem", "cleared")]
    async with site.http.get("/metrics") as answer:
        assert "gpu_alert{" not in await answer.text()


@pytest.mark.real
async def test_cordoned_device_gets_no_tasks_and_the_other_does(site: Site) -> None:
    worker = await site.join()
    status, answer = await site.call("POST", "/workers/w/devices/0/cordon")
    assert (status, answer["status"]) == (200, "device 0 cordoned")
    for _ in range(2):
        await site.submit()
        assign = await worker.take()
        assert [each.index for each in assign.devices] == [1]
        await worker.finish(assign)
    assert (await site.call("POST", "/workers/w/devices/0/uncordon"))[0] == 200
    await site.submit()
    first = await worker.take()
    await site.submit()
    second = await worker.take()
    assert {each.index for assign in (first, second) for each in assign.devices} == {0, 1}
    status, answer = await site.call("POST", "/workers/w/devices/7/cordon")
    assert (status, "it has [0, 1]" in answer["error"]["message"]) == (404, True)
