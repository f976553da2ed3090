"""`sleep`: waits for `{"seconds": 5}`, with a line of progress each second when `"progress": true`."""

import time
from typing import Annotated

import msgspec

from gpu_orchestrator.apps.worker.task import Task


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seconds: Annotated[float, msgspec.Meta(ge=0)]
    progress: bool = False


def handle(task: Task) -> dict[str, float]:
    parameters = task.parameters(Parameters)
    start = time.monotonic()
    while (left := start + parameters.seconds - time.monotonic()) > 0:
        task.sleep(min(left, 1.0) if parameters.progress else left)
        if parameters.progress:
            task.progress(
                f"{min(time.monotonic() - start, parameters.seconds):.0f} of {parameters.seconds:g} s"
            )
    return {"slept_s": round(time.monotonic() - start, 3)}
