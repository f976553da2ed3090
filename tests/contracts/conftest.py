"""A store for contract tests: on the embedded server, on an external one as operators run it, behind
Sentinel, and on the other versions that docs/compatibility.md promises."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.store.records import (
    NewsItem,
)
from gpu_orchestrator.adapters.store.store import Store, StoreTimeouts
from gpu_orchestrator.adapters.store.valkey.database import Database
from tests.support import debian_stores, stores
from tests.support.store_calls import SHORT, NewStore


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on the embedded store and on an external one; at full scale, also behind Sentinel and on
    other versions."""
    if "url" in metafunc.fixturenames:
        full = metafunc.config.getoption("--scale") != "test"
        more = ["sentinel", *debian_stores.STORES] if full else []
        metafunc.parametrize("url", ["embedded", "external", *more], indirect=True)


@pytest.fixture
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param in debian_stores.STORES:
        debian_stores.get_or_skip(request.param)
    async with stores.server(request.param, tmp_path) as address:
        yield address


@pytest.fixture
async def empty_store(url: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A store on another server of the same kind, for what a backup brings: a server of another version may
    not read it."""
    (tmp_path / "other").mkdir()
    kind = request.node.callspec.params["url"]
    async with (
        stores.server(kind, tmp_path / "other") as address,
        Store(Database(address), owner="two") as made,
    ):
        yield made


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
