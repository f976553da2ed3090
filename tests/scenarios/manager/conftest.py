"""Scenarios that must behave alike with either executor: the server's own sessions carry tasks, or Celery."""

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Play a scenario that takes an `executor` with both of them; at test size Celery, whose processes take
    seconds of CPU to start, plays only those that are marked `celery`."""
    if "executor" not in metafunc.fixturenames:
        return
    marked = any(each.name == "celery" for each in metafunc.definition.iter_markers())
    is_full = metafunc.config.getoption("--scale") == "accept"
    metafunc.parametrize("executor", ["native", "celery"] if marked or is_full else ["native"])
