"""Tests that names belong to keys and devices to one worker, and that refused workers learn why."""

from typing import Any

import pytest

from gpu_orchestrator.adapters.gpus.simulated import Simulated
from gpu_orchestrator.api import session
from tests.apps.manager.conftest import TOKEN, Site
from tests.support import scripted_worker

pytestmark = pytest.mark.real


async def make_key(site: Site, name: str, **rest: Any) -> str:
    status, made = await site.call("POST", "/keys", {"name": name, "scopes": ["worker"], **rest})
    assert status == 201, made
    return str(made["key"])


async def refusal(site: Site, token: str, name: str, **rest: Any) -> session.Goodbye:
    greeting = scripted_worker.hello(name, instance=f"{name}-again", **rest)
    async with scripted_worker.joined(site.running.url, token, greeting) as worker:
        return await worker.receive(session.Goodbye)


async def join(site: Site, token: str, name: str, **rest: Any) -> None:
    """Join, and leave for good."""
    greeting = scripted_worker.hello(name, **rest)
    async with scripted_worker.joined(site.running.url, token, greeting) as worker:
        await worker.receive(session.Welcome)
    assert (await site.call("DELETE", f"/workers/{name}?drain=false"))[0] == 200


async def test_worker_key_is_bound_to_the_first_name_that_it_joins_with(site: Site) -> None:
    token = await make_key(site, "fleet")
    (key,) = [each for each in (await site.call("GET", "/keys"))[1]["keys"] if each["name"] == "fleet"]
    assert key["worker"] is None
    await join(site, token, "gpu-1")
    goodbye = await refusal(site, token, "gpu-2")
    assert (goodbye.refused, goodbye.retry) == (True, False)
    assert goodbye.reason == (
        "this token is for the worker gpu-1; start this one with --name gpu-1, or create a token for it: "
        "gpu-orchestrator key create gpu-2 --scope worker --worker gpu-2"
    )
    (key,) = [each for each in (await site.call("GET", "/keys"))[1]["keys"] if each["name"] == "fleet"]
    assert key["worker"] == "gpu-1"


async def test_name_of_another_key_is_refused_over_websocket_and_polling(site: Site) -> None:
    own, other = await make_key(site, "one", worker="gpu-1"), await make_key(site, "two", worker="*")
    greeting = scripted_worker.hello("gpu-1")
    async with scripted_worker.joined(site.running.url, own, greeting) as worker:
        await worker.receive(session.Welcome)
    assert "the name gpu-1 belongs to key" in (await refusal(site, other, "gpu-1")).reason
    hello = session.frame(scripted_worker.hello("gpu-1", instance="thief"))[1:-1]
    headers = {"Authorization": f"Bearer {other}"}
    async with site.http.post("/workers", data=hello, headers=headers) as answer:
        assert answer.status == 409
        assert "belongs to key" in (await answer.json())["error"]["message"]


async def test_shared_token_serves_many_names_but_takes_none_of_a_key(site: Site) -> None:
    await site.join("gpu-1")
    await site.join("gpu-2")
    own = await make_key(site, "three", worker="gpu-3")
    async with scripted_worker.joined(site.running.url, own, scripted_worker.hello("gpu-3")) as worker:
        await worker.receive(session.Welcome)
    assert "belongs to key" in (await refusal(site, TOKEN, "gpu-3")).reason


async def test_second_worker_with_a_device_is_refused_and_told_who_has_it(site: Site) -> None:
    devices = (session.Device(0, "GPU-real", "nvidia", "L4", 24 * 1024),)
    await site.join("gpu-1", devices=devices)
    goodbye = await refusal(site, TOKEN, "gpu-2", devices=devices)
    assert (goodbye.refused, goodbye.retry) == (True, True)
    assert goodbye.reason == (
        "the worker gpu-1 has the device GPU-real already; "
        "stop that one, or start this one without the device"
    )
    assert [each["worker_id"] for each in (await site.call("GET", "/workers"))[1]["workers"]] == ["gpu-1"]
    assert (await site.call("DELETE", "/workers/gpu-1?drain=false"))[0] == 200
    await site.join("gpu-2", devices=devices)


async def test_names_of_workers_are_checked(site: Site) -> None:
    for given, status in (
        ({"scopes": ["submit"], "worker": "w"}, 422),
        ({"scopes": ["worker"], "worker": "a b"}, 422),
        ({"scopes": ["worker"], "worker": "evil\n"}, 422),
        ({"scopes": ["worker", "read"], "worker": "w"}, 201),
    ):
        assert (await site.call("POST", "/keys", {"name": "k", **given}))[0] == status, given
    evil = session.frame(scripted_worker.hello("evil\n"))[1:-1]
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with site.http.post("/workers", data=evil, headers=headers) as answer:
        assert answer.status == 422


async def test_cordon_follows_the_device_when_indexes_change(site: Site) -> None:
    first, second, third = (
        session.Device(index, uuid, "nvidia", "L4", 24 * 1024)
        for index, uuid in ((0, "GPU-a"), (1, "GPU-b"), (0, "GPU-b"))
    )
    before = await site.join("w", devices=(first, second))
    assert (await site.call("POST", "/workers/w/devices/1/cordon"))[0] == 200
    await before.close()
    await site.missed("w")
    after = scripted_worker.hello("w", devices=(third,), instance="w-2")
    async with scripted_worker.joined(site.running.url, TOKEN, after) as worker:
        await worker.receive(session.Welcome)
        shown = (await site.call("GET", "/workers/w"))[1]["gpu_info"]
        assert [(gpu["index"], gpu["cordoned"]) for gpu in shown] == [(0, True)]
        assert (await site.call("POST", "/workers/w/devices/0/uncordon"))[0] == 200
        assert [gpu["cordoned"] for gpu in (await site.call("GET", "/workers/w"))[1]["gpu_info"]] == [False]


async def test_only_callers_with_a_key_learn_which_machine_leads(site: Site) -> None:
    for path in ("/health", "/health/ready"):
        _, known = await site.call("GET", path)
        assert known["dependencies"]["leader"] == site.running.manager.store.owner
        assert "of 4096" in known["dependencies"]["connections"]
        for header in ("", "Bearer wrong"):
            _, stranger = await site.call("GET", path, headers={"Authorization": header})
            assert stranger["dependencies"]["leader"] == "ok"
            assert "connections" not in stranger["dependencies"]


def test_simulated_devices_of_two_folders_differ(tmp_path: Any) -> None:
    one, two = (Simulated(tmp_path / name, "4").devices() for name in ("one", "two"))
    assert len({each.uuid for each in (*one, *two)}) == 8
