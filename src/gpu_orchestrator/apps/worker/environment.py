"""What a process that runs users' code starts with: an environment without secrets, and a search path with
the current folder last. Imports little: every runner loads it.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gpu_orchestrator.api import task_gangs
from gpu_orchestrator.api.task_gangs import Gang

SECRETS = ("GPU_ORCHESTRATOR_TOKEN", "REDIS_", "RESULTS_S3_", "SECRETS_KEY", "SSL_KEY")
"""How variables begin that the agent or the manager needs and that tasks must not see. To these come all
secret settings of the manager, and the files with them."""
MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""Set for a runner whose device memory MPS limits to what its task reserved."""


def without_secrets() -> dict[str, str]:
    from gpu_orchestrator.adapters import settings  # not for runners: it is large

    hidden = (*SECRETS, *(name.upper() for name in settings.SECRETS))
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(hidden)}


@contextmanager
def of_gang(gang: Gang, attempt: int) -> Iterator[None]:
    """Let a member of a gang find the others by its environment; restore that behind."""
    added = task_gangs.environment(gang, attempt)
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def add_current_folder() -> None:
    """Let functions be imported from the current folder, after all that is installed."""
    with suppress(FileNotFoundError):  # the folder was removed
        if (folder := os.getcwd()) not in sys.path:
            sys.path.append(folder)
