"""Every way into the API, taken from the application itself, against everybody who may come.

What a route needs is declared beside it; here it is tried. docs/security.md shows the same list to people.
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

STRANGERS = ("nobody", "wrong", "expired", "revoked")
ALLOWED = {
    "nothing": {*STRANGERS, "read", "submit", "other", "admin", "worker"},
    "metrics": {*STRANGERS, "read", "submit", "other", "admin", "worker"},
    "read": {"read", "submit", "other", "admin"},
    "submit": {"submit", "other", "admin"},
    "admin": {"admin"},
    "worker": {"worker", "admin"},
}
OPEN = {"/health", "/health/live", "/health/ready", "/metrics"}


@pytest.fixture
async def callers(site: Site) -> dict[str, dict[str, str]]:
    """The headers of each. `read` and `submit` belong to ann, `other` to bob."""
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
async def stranger(site: Site) -> AsyncIterator[aiohttp.ClientSession]:
    """A client that sends no key by itself."""
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(site.running.url, timeout=timeout) as http:
        yield http


def openings(site: Site) -> list[GuardedRoute]:
    return list(route_auth.guarded_routes(app.application(site.running.manager)))


async def knock(
    http: aiohttp.ClientSession, opening: GuardedRoute, path: str, headers: dict[str, str]
) -> int:
    """The status of the answer; 101 for a WebSocket that was taken."""
    if opening.method == "WS":
        try:
            async with http.ws_connect(path, headers=headers):
                return 101
        except aiohttp.WSServerHandshakeError as error:
            return error.status
    async with http.request(opening.method, path, headers=headers, params={"timeout": "0"}) as answer:
        return answer.status


def expected(opening: GuardedRoute, callback_sender: str) -> set[int] | None:
    """The statuses that are right; None: any but a refusal to let in."""
    if callback_sender not in ALLOWED[opening.route_guard.needs]:
        return {401} if callback_sender in STRANGERS else {403}
    if "{task_id}" in opening.path and callback_sender == "other":
        return {404}
    return None


async def test_everybody_gets_in_exactly_where_declared(
    site: Site, stranger: aiohttp.ClientSession, callers: dict[str, dict[str, str]]
) -> None:
    asked = {"task_type": "echo", "resources": {"gpus": 0}}
    status, task = await site.call("POST", "/tasks", asked, headers=callers["submit"])
    assert status == 202, task
    wrong, tried = [], 0
    for opening in openings(site):
        path = opening.path.replace("{task_id}", task["task_id"])
        path = re.sub(r"{\w+}", "0", path)
        for callback_sender, headers in callers.items():
            status = await knock(stranger, opening, path, headers)
            right = expected(opening, callback_sender)
            good = status in right if right else status not in (401, 403) and status < 500
            if right is None and "{task_id}" in opening.path:
                good = good and status != 404
            tried += 1
            if not good:
                wrong.append(
                    (opening.method, opening.path, opening.route_guard.needs, callback_sender, status)
                )
    assert not wrong
    assert tried >= 9 * 50


async def test_both_prefixes_have_the_same_doors(site: Site) -> None:
    found = {(each.method, each.path): each.route_guard for each in openings(site)}
    bare = {key: route_guard for key, route_guard in found.items() if not key[1].startswith("/api/v1")}
    bare.pop(("GET", "/openapi.json"))
    prefixed = {
        (method, path.removeprefix("/api/v1")): route_guard
        for (method, path), route_guard in found.items()
        if path.startswith("/api/v1")
    }
    assert bare == prefixed


async def test_little_is_open_and_who_only_reads_changes_nothing(site: Site) -> None:
    for each in openings(site):
        bare = each.path.removeprefix("/api/v1")
        assert (each.route_guard.needs in ("nothing", "metrics")) == (bare in OPEN), bare
        if each.method not in ("GET", "WS"):
            assert each.route_guard.needs in route_auth.CHANGES, bare


async def test_the_guide_lists_every_route_and_what_it_needs(site: Site) -> None:
    written = re.findall(r"^\| `\w+ /[^`]*` \| \w+ \|$", GUIDE.read_text(), flags=re.MULTILINE)
    true = [
        f"| `{each.method} {each.path}` | {each.route_guard.needs} |"
        for each in openings(site)
        if not each.path.startswith("/api/v1")
    ]
    assert sorted(written) == sorted(true), "docs/security.md has a line for each route"


async def test_metrics_can_be_closed(new_site: NewSite) -> None:
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
async def test_only_who_has_a_key_is_told_what_there_is(
    stranger: aiohttp.ClientSession, method: str, path: str, status: int
) -> None:
    async with stranger.request(method, path) as answer:
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    async with stranger.request(method, path, **bearing(TOKEN)) as answer:
        assert answer.status == status


def test_a_route_that_does_not_say_what_it_needs_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    router = APIRouter()

    @router.get("/secrets")
    async def secrets(request: Request) -> Any: ...

    monkeypatch.setattr(app, "ROUTERS", (*app.ROUTERS, router))
    with pytest.raises(route_auth.UnguardedRoute, match="/api/v1/secrets does not say what it needs"):
        app.build(Any)  # type: ignore[arg-type]


async def test_a_refusal_says_what_was_needed(site: Site) -> None:
    made = await make(site, scopes=["read"])
    status, answer = await site.call("POST", "/tasks", {"task_type": "echo"}, **bearing(made["key"]))
    assert status == 403
    assert answer["error"]["message"] == (f"this key ({made['key_id']}) has the scope read; submit is needed")
    assert answer["error"]["details"] == {"needs": "submit"}


async def test_trying_out_many_keys_at_once_does_no_harm(stranger: aiohttp.ClientSession) -> None:
    async def attempt(number: int) -> int:
        async with stranger.get("/tasks", **bearing(f"gpo_{number:064x}")) as answer:
            return answer.status

    assert set(await asyncio.gather(*(attempt(number) for number in range(200)))) == {401}
