"""What waits, in seconds of work."""

from typing import Any

import pytest

from gpu_orchestrator.apps.manager.autoscale.load import Load, Tasks, load_of
from gpu_orchestrator.apps.manager.tasks.service_times import Kind, ServiceTimes

ECHO, CHAT = Kind("echo", ""), Kind("chat", "llama")


def loaded(*tasks: Tasks, **given: Any) -> Load:
    times = ServiceTimes()
    times.ended(ECHO, 2.0)
    times.ended(CHAT, 4.0)
    known: dict[str, Any] = {"pool": "", "may_run": lambda _: None, "loaded": (), **given}
    return load_of(tasks, (), service_s=times.of, load_s=lambda _: 30.0, **known)


@pytest.mark.parametrize(
    ("tasks", "given", "waiting", "work_s"),
    [
        pytest.param([Tasks("a", ECHO, "", 5)], {}, 5, 10.0, id="as measured"),
        pytest.param([Tasks("a", Kind("new", ""), "", 2)], {}, 2, 6.0, id="unknown: the mean of all"),
        pytest.param([Tasks("a", ECHO, "", 2, 1, 100.0)], {}, 2, 200.0, id="one runs longer than measured"),
        pytest.param([Tasks("a", CHAT, "", 2)], {}, 2, 38.0, id="with one load of the model"),
        pytest.param([Tasks("a", CHAT, "", 2)], {"loaded": ["llama"]}, 2, 8.0, id="that is loaded"),
        pytest.param([Tasks("a", ECHO, "gold", 5)], {}, 0, 0.0, id="another pool"),
        pytest.param([Tasks("a", ECHO, "", 5, 1)], {"may_run": lambda _: 1}, 0, 0.0, id="quota used up"),
        pytest.param([Tasks("a", ECHO, "", 5, 1)], {"may_run": lambda _: 2}, 5, 10.0, id="quota with room"),
        pytest.param([Tasks("a", ECHO, "", 0, 3)], {}, 0, 0.0, id="nothing waits"),
    ],
)
def test_work(tasks: list[Tasks], given: Any, waiting: int, work_s: float) -> None:
    found = loaded(*tasks, **given)
    assert (found.waiting, found.work_s) == (waiting, work_s)
    assert found.running == sum(each.running for each in tasks)


def test_service_times_pass_to_the_next_leader_and_newer_ones_stay() -> None:
    first, second = ServiceTimes(), ServiceTimes()
    first.ended(ECHO, 2.0)
    first.ended(CHAT, 4.0)
    second.ended(ECHO, 3.0)
    second.restore(first.kept())
    assert (second.of(ECHO), second.of(CHAT)) == (3.0, 4.0)
