"""What every test may use: the scale of a scenario, and which tier a test belongs to.

A test that asks for a fixture backed by real servers is marked `real` by itself, so `make test-fast`
leaves it out and nobody has to remember the mark.
"""

from pathlib import Path

import pytest

from tests.ledger import Ledger
from tests.scale import Scale

REAL_FIXTURES = {"cluster", "new_cluster", "toolbox"}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpu-orchestrator")
    group.addoption(
        "--scale", choices=("test", "accept"), default="test", help="how large scenarios are played"
    )
    group.addoption(
        "--ledger", type=Path, help="folder that remembers what passed, to take up an interrupted run"
    )


def pytest_configure(config: pytest.Config) -> None:
    if folder := config.getoption("--ledger"):
        config.pluginmanager.register(Ledger(folder, config.rootpath), "ledger")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if REAL_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("real")


@pytest.fixture(scope="session")
def scale(pytestconfig: pytest.Config) -> Scale:
    """`scale(test=2, accept=20)`: one scenario, played small in `make test` and in full in `make accept`."""
    return Scale(pytestconfig.getoption("--scale"))
