"""A task's spec as text and back."""

import pytest

from gpu_orchestrator.api import task
from gpu_orchestrator.api.task import SHORT, TaskSpec

PLAIN = TaskSpec("echo", gpus=2, memory_mib=1024, tenant="ann")
LABELLED = TaskSpec("echo", labels={"note": "x" * SHORT})


@pytest.mark.parametrize("spec", [PLAIN, LABELLED])
def test_spec_survives_encoding(spec: TaskSpec) -> None:
    assert task.decode(task.encode(spec)) == spec


def test_only_short_specs_are_cached() -> None:
    assert task.decode(task.encode(PLAIN)) is task.decode(task.encode(PLAIN))
    assert task.decode(task.encode(LABELLED)) is not task.decode(task.encode(LABELLED))


@pytest.mark.parametrize(
    ("priority", "level"),
    [(0, 0), (25, 0), (49, 0), (50, 1), (74, 1), (75, 2), (89, 2), (90, 3), (100, 3)],
)
def test_waiting_tasks_are_counted_by_level(priority: int, level: int) -> None:
    assert task.level(priority) == level
