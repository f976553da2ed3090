"""`echo`: returns its parameters. The cheapest task."""

from typing import Any

import msgspec

from gpu_orchestrator.apps.worker.task import Task


def handle(task: Task) -> Any:
    return task.parameters(msgspec.Raw)
