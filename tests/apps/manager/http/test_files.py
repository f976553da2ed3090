"""Files over HTTP: uploaded, listed, downloaded and deleted by their owner, within bounds; in a folder or a
bucket.
"""

import asyncio
import hashlib
from io import BytesIO
from typing import Any

import pytest

from gpu_orchestrator.apps.manager.tasks import files
from tests.apps.manager.conftest import TOKEN, NewSite, Site
from tests.apps.manager.events.test_event_feed import key_of
from tests.support import s3_server

pytestmark = pytest.mark.real
DATA = b"some data\n" * 100_000
WORKER = {"Authorization": f"Bearer {TOKEN}"}


async def upload(
    site: Site, data: bytes = DATA, name: str = "data.txt", path: str = "/files", headers: Any = None
) -> Any:
    body = BytesIO(data)
    async with site.http.post(path, params={"name": name}, data=body, headers=headers) as answer:
        return answer.status, await answer.json()


async def content(site: Site, file_id: str, headers: Any = None) -> tuple[int, bytes]:
    async with site.http.get(f"/files/{file_id}/content", headers=headers) as answer:
        return answer.status, await answer.read()


def on_disk(site: Site) -> list[str]:
    return [each.name for each in site.running.manager.results.folder.rglob("file-*") if each.is_file()]


async def test_file_is_kept_listed_and_deleted(site: Site) -> None:
    status, info = await upload(site, name='../a/"ü%2f\x01.txt')
    assert (status, info["bytes"], info["sha256"]) == (201, len(DATA), hashlib.sha256(DATA).hexdigest())
    assert info["name"] == "_ü_2f_.txt"
    assert await content(site, info["file_id"]) == (200, DATA)
    _, empty = await upload(site, b"", "empty")
    assert await content(site, empty["file_id"]) == (200, b"")
    _, page = await site.call("GET", "/files")
    assert (page["total"], page["bytes"], len(page["files"])) == (2, len(DATA), 2)
    assert (await site.call("GET", f"/files/{info['file_id']}"))[1] == info
    assert len(on_disk(site)) == 2
    assert (await site.call("DELETE", f"/files/{info['file_id']}"))[0] == 200
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        assert (await site.call(method, f"/files/{info['file_id']}{path}"))[0] == 404
    await site.running.manager.retention._delete_due()
    assert len(on_disk(site)) == 1
    assert (await site.call("GET", "/files"))[1]["total"] == 1


async def test_others_neither_see_nor_use_a_file(site: Site) -> None:
    await site.join()
    _, info = await upload(site)
    stranger = {"Authorization": f"Bearer {await key_of(site, 'submit', 'stranger')}"}
    file = info["file_id"]
    assert (await content(site, file, stranger))[0] == 404
    assert (await site.call("DELETE", f"/files/{file}", headers=stranger))[0] == 404
    assert (await site.call("GET", "/files", headers=stranger))[1]["total"] == 0
    body = {"task_type": "echo", "parameters": {"data": {"$file": file}}, "resources": {"gpus": 0}}
    status, refused = await site.call("POST", "/tasks", body, headers=stranger)
    assert (status, f"the file {file}: stranger has no such file" in refused["error"]["message"]) == (
        422,
        True,
    )
    reader = {"Authorization": f"Bearer {await key_of(site, 'read', 'reader')}"}
    assert (await upload(site, headers=reader))[0] == 403
    assert (await content(site, file, {"Authorization": "Bearer nothing"}))[0] == 401
    assert (await content(site, file))[0] == 200


async def test_worker_fetches_and_leaves_files_of_its_attempts_alone(site: Site) -> None:
    worker = await site.join()
    ann = {"Authorization": f"Bearer {await key_of(site, 'submit', 'ann')}"}
    _, info = await upload(site, headers=ann)
    _, alien = await upload(site)
    parameters = {"data": {"$file": info["file_id"]}}
    body = {"task_type": "echo", "parameters": parameters, "resources": {"gpus": 0}}
    await site.call("POST", "/tasks", body, headers=ann)
    assign = await worker.take()
    place = f"/workers/w/files/{assign.task}/1"
    async with site.http.get(f"{place}/{info['file_id']}", headers=WORKER) as answer:
        assert (answer.status, await answer.read()) == (200, DATA)
    status, left = await upload(site, b"left", path=place, headers=WORKER)
    assert (status, left["bytes"]) == (201, 4)
    assert await content(site, left["file_id"], ann) == (200, b"left")
    for path in (
        f"{place}/{alien['file_id']}",
        f"/workers/w/files/{assign.task}/2/{info['file_id']}",
        f"/workers/other/files/{assign.task}/1/{info['file_id']}",
    ):
        assert (await site.call("GET", path, headers=WORKER))[0] == 404, path
    thief = {"Authorization": f"Bearer {await key_of(site, 'worker', 'thief')}"}
    assert (await site.call("GET", f"{place}/{info['file_id']}", headers=thief))[0] == 404
    assert (await upload(site, path=place, headers=ann))[0] == 403
    await worker.finish(assign)
    assert (await site.call("GET", f"{place}/{info['file_id']}", headers=WORKER))[0] == 404
    assert (await upload(site, path=place, headers=WORKER))[0] == 404


async def test_bounds_are_told_before_and_kept(new_site: NewSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site = await new_site(file_mb=1, files_mb=1.5)
    status, refused = await upload(site, b"x" * (2 << 20))
    assert (status, refused["error"]["details"]) == (413, {"limit_bytes": 1 << 20})
    assert (await upload(site))[0] == 201
    status, refused = await site.call("GET", "/files?room_for=1000000")
    assert (status, refused["error"]["details"]["files"]) == (409, 1)
    assert (await upload(site))[0] == 409
    assert (await site.call("GET", "/files?room_for=400000"))[0] == 200

    async def short() -> Any:
        yield b"x"

    async with site.http.post("/files", data=short()) as answer:
        assert (answer.status, "Content-Length" in await answer.text()) == (400, True)
    monkeypatch.setattr(files, "AT_ONCE", 0)
    assert (await upload(site, b"x"))[0] == 429
    assert len(on_disk(site)) == 1, "what was refused left nothing"
    off = await new_site("off", file_mb=0)
    assert (await upload(off, b"x"))[0] == 409


async def test_upload_that_breaks_off_leaves_nothing(site: Site) -> None:
    reader, writer = await asyncio.open_connection(*site.running.url.removeprefix("http://").split(":"))
    key = site.http.headers["Authorization"]
    writer.write(b"POST /files HTTP/1.1\r\nHost: x\r\nAuthorization: %b\r\n" % key.encode())
    writer.write(b"Content-Length: 1000000\r\n\r\n" + b"x" * 600_000)
    await writer.drain()
    async with asyncio.timeout(20):
        while not on_disk(site):  # noqa: ASYNC110 - the server's disk
            await asyncio.sleep(0.01)
        writer.transport.abort()
        while on_disk(site):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (await site.call("GET", "/files"))[1]["total"] == 0
    assert not await reader.read()


async def test_file_lasts_from_its_last_use_and_orphans_are_swept(site: Site) -> None:
    await site.join()
    _, info = await upload(site)
    manager = site.running.manager
    prefix = manager.store.database.prefix
    await manager.store.database._execute("PEXPIRE", f"{prefix}file:{info['file_id']}", 3000)
    await site.submit(parameters={"data": {"$file": info["file_id"]}}, resources={"gpus": 0})
    left_ms = await manager.store.database._execute("PTTL", f"{prefix}file:{info['file_id']}")
    assert left_ms > 3_600_000, "a task that names it keeps it"
    assert await manager.retention.sweep(-10) == 0, "it is no orphan"
    await manager.store.database._execute("DEL", f"{prefix}file:{info['file_id']}")
    await manager.store.database._execute("DEL", f"{prefix}results")
    assert await manager.retention.sweep(-10) == 1
    assert on_disk(site) == []


async def test_files_go_to_a_bucket(new_site: NewSite) -> None:
    async with s3_server.s3_server() as s3:
        site = await new_site(
            results_s3_endpoint=s3.url,
            results_s3_bucket=s3_server.BUCKET,
            results_s3_access_key=s3_server.ACCESS,
            results_s3_secret_key=s3_server.SECRET,
        )
        _, info = await upload(site)
        assert list(s3.objects.values()) == [DATA]
        assert on_disk(site) == []
        assert await content(site, info["file_id"]) == (200, DATA)
        s3.is_down = True
        assert (await upload(site))[0] == 503
        assert (await content(site, info["file_id"]))[0] == 503
        assert on_disk(site) == []
        s3.is_down = False
        await site.call("DELETE", f"/files/{info['file_id']}")
        await site.running.manager.retention._delete_due()
        assert s3.objects == {}
        assert s3.refused == 0


async def test_files_do_not_make_results_go(new_site: NewSite) -> None:
    site = await new_site(results_mb=0.1, result_inline_kb=1)
    worker = await site.join()
    name = await site.submit()
    assert await worker.finish(await worker.take(), "x" * 50_000)
    await upload(site)
    held = await site.running.manager.store.results.held()
    assert held.result_bytes == 50_002
    await site.running.manager.retention.enforce(recent_ms=-1)
    assert (await site.task(name))["status"] == "completed"
