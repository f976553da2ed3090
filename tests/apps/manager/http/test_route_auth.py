"""Tests every route of the application with every kind of caller.

Each route declares what it needs; these tests try it. docs/security.md has the same list.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from fastapi import APIRouter, Request

from gpu_orchestrator.apps.manager.http import app, route_auth
from gpu_orchestrator.apps.manager.http.route_auth import GuardedRoute
from tests.apps.manager.conftest import TOKEN, NewSite, Site
from tests.apps.manager.http.test_key_routes import bearing, make
from tests.support.paths import ROOT

pytestmark = pytest.mark.real
GUIDE = ROOT / "docs" / "security.md"

WITHOUT_VALID_KEY = ("nobody", "wrong", "expired", "revoked")
ALLOWED = {
    "nothing": {*WITHOUT_VALID_KEY, "read", "submit", "other", "admin", "worker"},
    "metrics": {*WITHOUT_VALID_KEY, "read", "submit", "other", "admin", "worker"},
    "read": {"read", "submit", "other", "admin"},
    "submit": {"submit", "other", "admin"},
    "admin": {"admin"},
    "worker": {"worker", "admin"},
}
WAIT = "/tasks/wait"
"""Changes nothing; a query has no room for the ids that it takes."""
OPEN = {"/health", "/health/live", "/health/ready", "/metrics", "/", "/docs", "/openapi.json"}


@pytest.fixture
async def callers(site: Site) -> dict[str, dict[str, str]]:
    """Return the headers of each caller. `read` and `submit` belong to ann, `other` to bob."""
    made = {
        "read": await make(site, "ann-read", owner="ann", scopes=["read"]),
        "submit": await make(site, "ann-submit", owner="ann", scopes=["submit"]),
        "other": await make(site, "bob", scopes=["submit"]),
        "expired": await make(site, "late", scopes=["admin"], expires_in=0.001),
        "revoked": await make(site, "gone", scopes=["admin"]),
    }
    await site.call("DELETE", f"/keys/{made['revoked']['key_id']}")
    secrets = {name: each["key"] for name, each in made.items()}
    secrets |= {"wrong": "gpo_" + "0" * 64, "admin": "k" * 64, "worker": TOKEN}
    return {"nobody": {}, **{name: {"Authorization": f"Bearer {each}"} for name, each in secrets.items()}}


@pytest.fixture
async def keyless(site: Site) -> AsyncIterator[aiohttp.ClientSession]:
    """A client that sends no key by default."""
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(site.running.url, timeout=timeout) as http:
        yield http


def routes(site: Site) -> list[GuardedRoute]:
    return list(route_auth.guarded_routes(app.application(site.running.manager)))


async def request_status(
    http: aiohttp.ClientSession, route: GuardedRoute, path: str, headers: dict[str, str]
) -> int:
    """Return the status of the response; 101 for an accepted WebSocket."""
    if route.method == "WS":
        try:
            async with http.ws_connect(path, headers=headers):
                return 101
        except aiohttp.WSServerHandshakeError as error:
            return error.status
    query = {"timeout": "0"} if "timeout" in route.query else {}
    async with http.request(route.method, path, headers=headers, params=query) as answer:
        return answer.status


def expected(route: GuardedRoute, caller: str) -> set[int] | None:
    """Return the right statuses; None for any but 401 and 403."""
    if caller not in ALLOWED[route.route_guard.needs]:
        return {401} if caller in WITHOUT_VALID_KEY else {403}
    if "{task_id}" in route.path and caller == "other":
        return {404}
    return None


async def test_every_caller_is_admitted_exactly_where_declared(
    site: Site, keyless: aiohttp.ClientSession, callers: dict[str, dict[str, str]]
) -> None:
    body = {"task_type": "echo", "resources": {"gpus": 0}}
    status, task = await site.call("POST", "/tasks", body, headers=callers["submit"])
    assert status == 202, task
    wrong, tried = [], 0
    for route in routes(site):
        path = route.path.replace("{task_id}", task["task_id"])
        path = re.sub(r"{\w+}", "0", path)
        for caller, headers in callers.items():
            status = await request_status(keyless, route, path, headers)
            right = expected(route, caller)
            good = status in right if right else status not in (401, 403) and status < 500
            if right is None and "{task_id}" in route.path:
                good = good and status != 404
            tried += 1
            if not good:
                wrong.append((route.method, route.path, route.route_guard.needs, caller, status))
    assert not wrong
    assert tried >= 9 * 50


async def test_both_prefixes_have_the_same_guards(site: Site) -> None:
    found = {(each.method, each.path): each.route_guard for each in routes(site)}
    bare = {
        key: route_guard for key, route_guard in found.items() if not key[1].startswith(("/api/v1", "/v1/"))
    }
    prefixed = {
        (method, path.removeprefix("/api/v1")): route_guard
        for (method, path), route_guard in found.items()
        if path.startswith("/api/v1")
    }
    assert bare == prefixed


async def test_only_listed_routes_are_open_and_changing_routes_need_more_than_read(site: Site) -> None:
    for each in routes(site):
        bare = each.path.removeprefix("/api/v1")
        assert (each.route_guard.needs in ("nothing", "metrics")) == (bare in OPEN), bare
        if each.method not in ("GET", "WS") and bare != WAIT:
            assert each.route_guard.needs in route_auth.CHANGES, bare


async def test_security_guide_lists_every_route_and_its_scope(site: Site) -> None:
    written = re.findall(r"^\| `\w+ /[^`]*` \| \w+ \|$", GUIDE.read_text(), flags=re.MULTILINE)
    true = [
        f"| `{each.method} {each.path}` | {each.route_guard.needs} |"
        for each in routes(site)
        if not each.path.startswith("/api/v1")
    ]
    assert sorted(written) == sorted(true), "docs/security.md has a line for each route"


async def test_metrics_auth_closes_metrics(new_site: NewSite) -> None:
    closed: Site = await new_site(metrics_auth=True)
    async with aiohttp.ClientSession(closed.running.url) as http:
        for path in ("/metrics", "/api/v1/metrics"):
            async with http.get(path) as answer:
                assert answer.status == 401
            async with http.get(path, **bearing(TOKEN)) as answer:
                assert answer.status == 403
            async with http.get(path, **bearing("k" * 64)) as answer:
                assert answer.status == 200


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/what", 404), ("PUT", "/tasks", 405)])
async def test_unknown_routes_answer_401_without_a_key(
    keyless: aiohttp.ClientSession, method: str, path: str, status: int
) -> None:
    async with keyless.request(method, path) as answer:
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    async with keyless.request(method, path, **bearing(TOKEN)) as answer:
        assert answer.status == status


def test_route_without_a_guard_fails_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    router = APIRouter()

    @router.get("/secrets")
    async def secrets(request: Request) -> Any: ...

    monkeypatch.setattr(app, "ROUTERS", (*app.ROUTERS, router))
    with pytest.raises(route_auth.UnguardedRoute, match="/api/v1/secrets does not declare what it needs"):
        app.build(Any)  # type: ignore[arg-type]


async def test_forbidden_names_the_needed_scope(site: Site) -> None:
    made = await make(site, scopes=["read"])
    status, answer = await site.call("POST", "/tasks", {"task_type": "echo"}, **bearing(made["key"]))
    assert status == 403
    assert answer["error"]["message"] == (f"this key ({made['key_id']}) has the scope read; submit is needed")
    assert answer["error"]["details"] == {"needs": "submit"}


async def test_many_wrong_keys_at_once_are_all_refused(keyless: aiohttp.ClientSession) -> None:
    async def attempt(number: int) -> int:
        async with keyless.get("/tasks", **bearing(f"gpo_{number:064x}")) as answer:
            return answer.status

    assert set(await asyncio.gather(*(attempt(number) for number in range(200)))) == {401}
