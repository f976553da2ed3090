"""A claim comes from the watch or, if it is not there yet, from the API server."""

import asyncio

import pytest

from gpu_orchestrator.adapters.kube import errors
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.adapters.kube.transport.base import Answer, Request
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.apps.webhook.claim_reader import CannotRead, ClaimReader
from gpu_orchestrator.apps.webhook.metrics import Metrics
from tests.support.scheduler_objects import claim
from tests.support.scheduler_stage import claim as written
from tests.support.scripted_transport import Line, Scripted, answer, refusal

LIMIT_S = 30.0


def reader(*script: Line, known: tuple[GpuClaim, ...] = ()) -> tuple[ClaimReader, Scripted]:
    store, transport = Store[GpuClaim](), Scripted(*script)
    for each in known:
        store.put(each)
    return ClaimReader(Client(transport), store, Metrics(), limit_s=LIMIT_S), transport


async def test_claim_of_the_watch_is_not_read() -> None:
    claims, transport = reader(known=(claim("train"),))
    found = await claims.find("default", "train")
    assert found is not None
    assert transport.requests == []


async def test_claim_that_is_not_shown_yet_is_read_once() -> None:
    claims, transport = reader(answer(written("train", 2)))
    found = await claims.find("default", "train")
    assert found is not None
    assert found.spec.devices.count == 2
    (request,) = transport.requests
    assert request.target == "/apis/gpu.scheduling/v1/namespaces/default/gpuclaims/train"


async def test_claim_that_does_not_exist_is_none() -> None:
    claims, _ = reader(refusal(404, "NotFound"))
    assert await claims.find("default", "train") is None


@pytest.mark.parametrize(
    "script",
    [
        pytest.param((refusal(403, "Forbidden"),), id="no right"),
        pytest.param((errors.Unreachable("connection refused"),), id="no server"),
        pytest.param((answer({"spec": 7}),), id="not a claim"),
    ],
)
async def test_claim_that_cannot_be_read_says_why(script: tuple[Line, ...]) -> None:
    claims, _ = reader(*script)
    with pytest.raises(CannotRead):
        await claims.find("default", "train")


class Silent(Scripted):
    async def send(self, request: Request, *, timeout_s: float, renew: bool = False) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError


async def test_silent_server_is_waited_for_only_so_long() -> None:
    claims = ClaimReader(Client(Silent()), Store[GpuClaim](), Metrics(), limit_s=0.05)
    with pytest.raises(CannotRead, match="did not answer within"):
        await claims.find("default", "train")
