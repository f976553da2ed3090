"""Sets how many cases the properties are tried on, before the test modules read it."""

import pytest

from tests.properties import cases


def pytest_configure(config: pytest.Config) -> None:
    cases.factor = 25 if config.getoption("--scale") == "accept" else 1
