"""The store fails over: clients leave a demoted or silent primary, find the new one, and fences never go
back."""

import asyncio
import signal
from pathlib import Path
from time import monotonic

import pytest

from gpu_orchestrator.adapters.store.errors import Unreachable
from gpu_orchestrator.adapters.store.records import NewTask
from gpu_orchestrator.adapters.store.store import Store, StoreTimeouts
from gpu_orchestrator.adapters.store.valkey import database
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.embedded import embedded
from tests.support.replicated import MovableAddress, Replicated, answers, replicated

pytestmark = pytest.mark.real
SHORT = StoreTimeouts(leader_ms=1)
PATIENT_S = 60.0


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients wait for an answer for longer than a failover may take on a busy machine."""
    monkeypatch.setattr(database, "ANSWER_S", PATIENT_S)


async def heard(database: Database) -> list[bytes]:
    """Return the messages of a channel, once its subscription has ended."""
    return [data async for _, data in database.listen("other")]


async def test_demoted_primary_behind_one_address_is_left(patient: None, tmp_path: Path) -> None:
    """The old connection lives on, and its server answers every write with READONLY."""
    pair = Replicated(tmp_path, nodes=2, sentinels=0, fsync="no")
    try:
        await pair.start()
        old, new = pair.nodes
        async with MovableAddress(old.port) as address, Store(Database(address.url), owner="a") as store:
            await store.tasks.submit([NewTask("t", "{}", "{}")])
            listening = asyncio.create_task(heard(store.database))
            await old.until(f"PUBSUB NUMSUB {store.database.prefix}other", lambda reply: reply[1] == 1)
            await new.command("REPLICAOF", "NO", "ONE")
            await old.command("REPLICAOF", "127.0.0.1", new.port)
            address.move(new.port)
            began = monotonic()
            await answers(store.leadership.campaign)
            assert monotonic() - began < PATIENT_S / 2, "left at the first refusal, not after a timeout"
            assert await listening == [], "the subscription to the old one has ended"
            assert (await new.command("EXISTS", "{gpu-orchestrator}:leader")) == 1
    finally:
        pair.close()


async def test_sentinel_leads_to_the_new_primary(tmp_path: Path) -> None:
    async with replicated(tmp_path) as stores, Store(Database(stores.url), owner="a") as store:
        await store.tasks.submit([NewTask("t", "{}", "{}")])
        first = await stores.primary()
        new = await stores.fail_over()
        assert new is not first
        await answers(store.leadership.campaign)
        assert (await new.command("EXISTS", "{gpu-orchestrator}:leader")) == 1


async def test_stopped_primary_is_left_when_sentinel_names_another(patient: None, tmp_path: Path) -> None:
    """No packet tells that it is gone: without the Sentinels' message the client would wait for its
    timeout."""
    async with replicated(tmp_path) as stores, Store(Database(stores.url), owner="a") as store:
        await store.leadership.campaign()
        old = await stores.primary()
        old.send(signal.SIGSTOP)
        with pytest.raises(Unreachable, match="Sentinel says that the primary is at"):
            await store.leadership.campaign()
        await answers(store.leadership.campaign)
        assert (await stores.primary()) is not old


async def test_fence_is_new_after_lost_elections(tmp_path: Path) -> None:
    """A failover takes the store back to an earlier state, with elections lost. No fence is given again."""
    async with (
        embedded(tmp_path) as server,
        Store(Database(server.url), owner="a", timeouts=SHORT) as one,
        Store(Database(server.url), owner="b", timeouts=SHORT) as two,
    ):
        given: list[int] = []

        async def elect(store: Store) -> None:
            store.fenced.drop_fence()
            while not (leading := await store.leadership.campaign()).fence:  # noqa: ASYNC110 - a term ends
                await asyncio.sleep(0.002)
            given.append(leading.fence)

        await elect(one)
        for lost in range(1, 4):
            before = await one.database.dump(["fence", "leader"])
            for number in range(lost):
                await elect((one, two)[number % 2])
            await one.database.restore(before)
            await elect(two)
        assert given == sorted(set(given))


async def test_fence_is_higher_than_any_that_was_seen(tmp_path: Path) -> None:
    """The clock of the new primary is an hour behind the old one's."""
    async with embedded(tmp_path) as server, Store(Database(server.url), owner="a") as store:
        first = (await store.leadership.campaign()).fence
        store.leadership._highest = ahead = first + 3600 * 1_000_000
        store.fenced.drop_fence()
        assert (await store.leadership.campaign()).fence == ahead + 1
