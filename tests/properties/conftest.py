"""How many cases the properties are tried on, set before the test modules read it; and at full speed."""

import sys
from collections.abc import Iterator

import pytest

from tests.support import examples


def pytest_configure(config: pytest.Config) -> None:
    examples.factor = 25 if config.getoption("--scale") == "accept" else 1


@pytest.fixture(autouse=True)
def untraced() -> Iterator[None]:
    """Coverage would make thousands of cases take four times as long; the tables cover these lines anyway."""
    tracer = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(tracer)
