"""What a process that runs users' code starts with: an environment without secrets, and a search path with
the current folder last. Imports little: every runner loads it.
"""

import os
import sys
from contextlib import suppress

SECRETS = ("GPU_ORCHESTRATOR_TOKEN", "API_KEY", "WORKER_TOKEN", "REDIS_")
"""Prefixes of environment variables that the agent needs and that tasks must not see."""
MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""Set for a runner whose device memory MPS limits to what its task reserved."""
SAFE_PATH = "-P"
"""Option of Python: do not search the current folder first. A random.py there would take the place of
Python's own."""


def without_secrets() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(SECRETS)}


def add_current_folder() -> None:
    """Let functions be imported from the current folder, after all that is installed."""
    with suppress(FileNotFoundError):  # the folder was removed
        if (folder := os.getcwd()) not in sys.path:
            sys.path.append(folder)
