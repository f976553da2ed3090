"""How long a pod says that it runs, by annotation or by its deadline."""

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

from gpu_orchestrator.api import run_times
from gpu_orchestrator.api.claims import BadGpuRequest
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.pod import PodCondition, PodStatus
from tests.support.scheduler_objects import pod


def made(text: str | None, *, since: str | None = None, **spec: Any) -> Pod:
    words = {} if text is None else {"max_runtime_seconds": text}
    scheduled = PodCondition("PodScheduled", "True", last_transition_time=since)
    return structs.replace(pod("p", gpus=1, **words, **spec), status=PodStatus(conditions=[scheduled]))


@pytest.mark.parametrize(
    ("text", "deadline", "declared_s", "enforced_s"),
    [
        pytest.param(None, 0, 0.0, 0.0, id="nothing"),
        pytest.param("600", 0, 600.0, 0.0, id="annotation"),
        pytest.param(None, 60, 60.0, 60.0, id="deadline"),
        pytest.param("600", 60, 60.0, 60.0, id="the shorter one"),
        pytest.param("30", 60, 30.0, 60.0, id="the shorter one is not enforced"),
        pytest.param(None, 10**15, 0.0, 0.0, id="a deadline that never comes"),
    ],
)
def test_declared(text: str | None, deadline: int, declared_s: float, enforced_s: float) -> None:
    it = made(text, activeDeadlineSeconds=deadline)
    assert run_times.declared_s(it) == declared_s
    assert run_times.declared_s(it, enforced_only=True) == enforced_s


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "1h", "٤", "9" * 4000, "99999999", " 5", "nan"])
def test_what_cannot_be_read_is_refused_with_the_words(text: str) -> None:
    with pytest.raises(BadGpuRequest, match="write a number of seconds from 1 to 31622400"):
        run_times.declared_s(made(text))


def test_end_counts_from_the_binding() -> None:
    it = made("60", since="2026-01-02T03:04:05Z")
    assert run_times.end(it) == datetime(2026, 1, 2, 3, 5, 5, tzinfo=UTC)
    assert run_times.end(it, enforced_only=True) is None


@pytest.mark.parametrize("since", ["", "yesterday", "2026-01-02T03:04:05"])
def test_an_end_that_cannot_be_known_is_none(since: str) -> None:
    assert run_times.end(made("60", since=since)) is None
    assert run_times.end(made("soon", since="2026-01-02T03:04:05Z")) is None
    assert run_times.end(made(None, since="2026-01-02T03:04:05Z")) is None
