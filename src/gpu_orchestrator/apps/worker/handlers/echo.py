"""`echo`: gives its parameters back. The cheapest task there is."""

from typing import Any

import msgspec

from gpu_orchestrator.apps.worker.task import Task


def handle(task: Task) -> Any:
    return task.parameters(msgspec.Raw)
