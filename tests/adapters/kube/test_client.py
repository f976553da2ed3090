"""What the client sends, what it retries and what it must not retry."""

import json
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from gpu_orchestrator.adapters.kube import errors, pods
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import LostAnswer, Unreachable
from gpu_orchestrator.adapters.kube.transport.base import Answer, Request
from gpu_orchestrator.adapters.kube.transport.codec import MetadataOnly, ignore_answer
from tests.support.kube_objects import CONFIG_MAPS, config_map
from tests.support.scripted_transport import Line, Scripted, answer, refusal

OK = answer(config_map())


def client(*script: Line) -> tuple[Client, Scripted]:
    transport = Scripted(*script)
    return Client(transport), transport


def body(request: Request) -> dict[str, object]:
    found: dict[str, object] = json.loads(request.body or b"{}")
    return found


async def read(client: Client) -> None:
    await client.get(CONFIG_MAPS, "x", "default")


async def create(client: Client) -> None:
    await client.create(CONFIG_MAPS, config_map())


async def create_again(client: Client) -> None:
    await client.create(CONFIG_MAPS, config_map(), idempotent=True)


async def merge(client: Client) -> None:
    await client.patch(CONFIG_MAPS, "x", {"data": {"a": "b"}}, "default")


async def guarded_merge(client: Client) -> None:
    await client.patch(CONFIG_MAPS, "x", {"metadata": {"resourceVersion": "1"}}, "default")


async def delete(client: Client) -> None:
    await client.delete(CONFIG_MAPS, "x", "default")


async def bind(client: Client) -> None:
    await pods.bind(client, config_map(), "node-a")


async def evict(client: Client) -> None:
    await pods.evict(client, config_map())


THROTTLED = refusal(429, retry_after="3")
BUDGET = answer(
    {"kind": "Status", "code": 429, "details": {"causes": [{"reason": "DisruptionBudget"}]}}, status=429
)


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("action", "trouble"),
    [
        pytest.param(read, refusal(503), id="get after 503"),
        pytest.param(read, LostAnswer("cut"), id="get after a lost answer"),
        pytest.param(merge, refusal(500), id="merge patch after 500"),
        pytest.param(merge, refusal(409, "Conflict"), id="unguarded patch after the server's own race"),
        pytest.param(create, THROTTLED, id="create after 429: it was not carried out"),
        pytest.param(create, Unreachable("refused"), id="create that was never sent"),
        pytest.param(create_again, LostAnswer("cut"), id="create with a computed name"),
        pytest.param(bind, THROTTLED, id="bind after 429"),
        pytest.param(delete, refusal(504), id="delete after 504"),
    ],
)
async def test_retried(action: Callable[[Client], Awaitable[None]], trouble: Line) -> None:
    speaker, transport = client(trouble, OK)
    await action(speaker)
    assert len(transport.requests) == 2
    assert transport.requests[0] == transport.requests[1]


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("action", "trouble", "raised"),
    [
        pytest.param(create, LostAnswer("cut"), errors.LostAnswer, id="create after a lost answer"),
        pytest.param(create, refusal(500), errors.Unavailable, id="create after 500"),
        pytest.param(bind, refusal(503), errors.Unavailable, id="bind after 503"),
        pytest.param(guarded_merge, refusal(409, "Conflict"), errors.Conflict, id="guarded patch"),
        pytest.param(create, refusal(409, "AlreadyExists"), errors.AlreadyExists, id="name taken"),
        pytest.param(evict, BUDGET, errors.BlockedByBudget, id="eviction against a budget"),
        pytest.param(read, refusal(403), errors.Forbidden, id="forbidden"),
    ],
)
async def test_not_retried(
    action: Callable[[Client], Awaitable[None]], trouble: Line, raised: type[Exception]
) -> None:
    speaker, transport = client(trouble, OK)
    with pytest.raises(raised):
        await action(speaker)
    assert len(transport.requests) == 1


@pytest.mark.looptime
async def test_retry_waits_for_retry_after(looptime: float) -> None:
    speaker, _ = client(THROTTLED, THROTTLED, OK)
    await read(speaker)
    assert looptime >= 6


@pytest.mark.looptime
async def test_gives_up_when_patience_ends(looptime: float) -> None:
    speaker, _ = client(*[refusal(503)] * 1000)
    with pytest.raises(errors.Unavailable):
        await read(speaker)
    assert 50 <= looptime <= 60


@pytest.mark.looptime
async def test_delete_after_lost_answer_takes_404_as_success() -> None:
    speaker, _ = client(LostAnswer("cut"), refusal(404))
    await delete(speaker)
    speaker, _ = client(refusal(404))
    with pytest.raises(errors.NotFound):
        await delete(speaker)


async def test_credentials_are_renewed_once_after_401() -> None:
    speaker, transport = client(refusal(401), OK)
    await create(speaker)
    assert transport.renewed == [False, True]
    speaker, transport = client(refusal(401), refusal(401), OK)
    with pytest.raises(errors.Unauthorized):
        await create(speaker)


async def test_create_adds_kind_and_api_version() -> None:
    speaker, transport = client(OK, OK)
    await speaker.create(CONFIG_MAPS, config_map(a="b"))
    await speaker.create(CONFIG_MAPS, {"metadata": {"name": "x", "namespace": "default"}})
    for request in transport.requests:
        assert request.target == "/api/v1/namespaces/default/configmaps"
        assert body(request)["kind"] == "ConfigMap"
        assert body(request)["apiVersion"] == "v1"
    assert body(transport.requests[0])["data"] == {"a": "b"}


async def test_binding_sends_guards_and_annotations() -> None:
    speaker, transport = client(answer({"kind": "Status"}))
    await pods.bind(
        speaker,
        config_map(version=7, uid="u"),
        "node-a",
        annotations={"gpu.scheduling/ids": "0,1"},
        at_version=True,
    )
    (request,) = transport.requests
    assert request.target == "/api/v1/namespaces/default/pods/x/binding"
    assert body(request)["metadata"] == {
        "name": "x",
        "namespace": "default",
        "uid": "u",
        "resourceVersion": "7",
        "annotations": {"gpu.scheduling/ids": "0,1"},
    }


async def test_delete_sends_its_preconditions() -> None:
    speaker, transport = client(OK)
    await speaker.delete(CONFIG_MAPS, "x", "default", uid="u", propagation="Foreground", grace_s=0)
    assert body(transport.requests[0]) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u"},
        "propagationPolicy": "Foreground",
        "gracePeriodSeconds": 0,
    }


def page(names: str, more: str = "", version: str = "9") -> Answer:
    items = [msgspec.to_builtins(config_map(name)) for name in names]
    return answer({"metadata": {"resourceVersion": version, "continue": more}, "items": items})


async def test_list_reads_all_pages() -> None:
    speaker, transport = client(page("ab", "next&1"), page("c"))
    listing = await speaker.list(CONFIG_MAPS, labels="a=b,c in (d,e)")
    assert [obj.metadata.name for obj in listing.items] == ["a", "b", "c"]
    assert listing.resource_version == "9"
    assert "continue=next%261" in transport.requests[1].target
    assert "labelSelector=a%3Db%2Cc+in+%28d%2Ce%29" in transport.requests[1].target


async def test_list_from_the_cache_asks_for_any_version() -> None:
    speaker, transport = client(page("a", "next"), page("b"), page("c"))
    assert len((await speaker.list(CONFIG_MAPS, version="0")).items) == 2
    await speaker.list(CONFIG_MAPS)
    has_version = ["resourceVersion=0" in request.target for request in transport.requests]
    assert has_version == [True, False, False]  # the token of the next page contains the version


async def test_list_starts_over_when_its_version_is_compacted() -> None:
    speaker, _ = client(page("ab", "next"), refusal(410, "Expired"), page("cd", version="12"))
    listing = await speaker.list(CONFIG_MAPS)
    assert [obj.metadata.name for obj in listing.items] == ["c", "d"]
    assert listing.resource_version == "12"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../secrets/x", "%2e%2e"])
async def test_unsafe_object_name_is_refused(name: str) -> None:
    speaker, transport = client()
    with pytest.raises(ValueError, match="give the name of one object"):
        await speaker.get(CONFIG_MAPS, name, "default")
    assert not transport.requests


async def test_ignore_answer_answers_are_not_decoded() -> None:
    speaker, _ = client(Answer(200, b"not json"))
    assert await speaker.create(ignore_answer(CONFIG_MAPS), config_map()) == MetadataOnly()


async def test_answer_that_does_not_fit_its_type_raises() -> None:
    speaker, _ = client(answer({"metadata": {"name": 7}}))
    with pytest.raises(errors.BadAnswer, match="does not fit our type of ConfigMap"):
        await speaker.get(CONFIG_MAPS, "x", "default")
