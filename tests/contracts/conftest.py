"""A store for contract tests: on the embedded server, and on an external one as operators run it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.store.records import (
    NewsItem,
)
from gpu_orchestrator.adapters.store.store import Store, StoreTimeouts
from gpu_orchestrator.adapters.store.valkey.database import Database
from tests.support import stores
from tests.support.store_calls import SHORT, NewStore


@pytest.fixture(params=["embedded", "external"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    async with stores.server(request.param, tmp_path) as address:
        yield address


@pytest.fixture
async def new_store(url: str) -> AsyncIterator[NewStore]:
    opened: list[Store] = []

    def open_store(owner: str = "one", timeouts: StoreTimeouts = SHORT) -> Store:
        opened.append(Store(Database(url), owner=owner, timeouts=timeouts))
        return opened[-1]

    yield open_store
    for store in opened:
        await store.database.close()


@pytest.fixture
async def store(new_store: NewStore) -> Store:
    """Return a store whose process leads."""
    leading = new_store()
    await leading.leadership.campaign()
    return leading


@pytest.fixture
def news(store: Store) -> list[NewsItem]:
    items: list[NewsItem] = []
    store.fenced.attach(items.extend, lambda: None)
    return items
