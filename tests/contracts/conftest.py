"""A store under contract: on the embedded server and on one as operators run it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.store.database import Database
from gpu_orchestrator.adapters.store.store import Store, Terms
from gpu_orchestrator.adapters.store.values import (
    Told,
)
from tests import stores
from tests.contracts.storing import SHORT, NewStore


@pytest.fixture(params=["embedded", "external"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    async with stores.server(request.param, tmp_path) as address:
        yield address


@pytest.fixture
async def new_store(url: str) -> AsyncIterator[NewStore]:
    opened: list[Store] = []

    def open_store(owner: str = "one", terms: Terms = SHORT) -> Store:
        opened.append(Store(Database(url), owner=owner, terms=terms))
        return opened[-1]

    yield open_store
    for store in opened:
        await store.database.close()


@pytest.fixture
async def store(new_store: NewStore) -> Store:
    """One that leads."""
    leading = new_store()
    await leading.leadership.strive()
    return leading


@pytest.fixture
def heard(store: Store) -> list[Told]:
    news: list[Told] = []
    store.link.attach(news.extend)
    return news
