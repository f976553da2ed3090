"""Names of settings: find those in `.env` and in the environment that are misspelt, or have no effect.

`server`, `up` and `worker` call it at start: a misspelt setting would silently have no effect.
"""

import os
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path

from gpu_orchestrator.adapters.settings import TYPES, BadSettings, Settings, env_file_values

OF_MODELS = (
    "MAX_MODEL_CACHE_SIZE_GB",
    "MODEL_CACHE_DIR",
    "MODEL_CACHE_SIZE",
    "MODEL_LOAD_TIMEOUT",
    "MODEL_MIN_LOADED",
    "MODEL_TTL",
)
"""What a worker reads about models; `up` passes those of its `.env` on."""
OF_OTHER_PROCESSES = (
    *OF_MODELS,
    "GPU_ORCHESTRATOR_ADDRESS",
    "GPU_ORCHESTRATOR_CA",
    "GPU_ORCHESTRATOR_ON_DISCONNECT",
    "GPU_ORCHESTRATOR_SERVER",
    "GPU_ORCHESTRATOR_TOKEN",
    "GPU_ORCHESTRATOR_URL",
    "GPU_ORCHESTRATOR_WORKER_OPTIONS",
    "GPU_SHARING",
    "MAX_CONCURRENT_TASKS",
)
"""Variables that the worker and the client commands read."""
NEAR_IN_FILE, NEAR_IN_ENVIRONMENT, NEAR_IN_FAMILY = 0.8, 0.86, 0.6
"""How alike an unknown name must be to count as a slip. The environment has names of many other programs; a
name in the file that begins as several of ours do is probably meant for us."""
FAMILIES = (
    "AUTO_SCALE_",
    "CALLBACK_",
    "GPU_MEMORY_",
    "GPU_ORCHESTRATOR_",
    "QUOTA_",
    "RATE_LIMIT_",
    "TASK_",
    "WORKER_",
)
WITHOUT_EFFECT = frozenset(
    {
        *("DEBUG", "RELOAD"),
    }
)
"""Settings of the design that this version does not read yet, beside others that begin with CELERY_."""


def slips(environ: Mapping[str, str] | None = None, env_file: Path = Path(".env")) -> list[str]:
    """Return a line for each name in the file or the environment that is probably a misspelt setting. If the
    setting itself is given as well, the other name is not a slip."""
    known = [*(each.name.upper() for each in fields(Settings)), *OF_OTHER_PROCESSES]
    in_file, around = env_file_values(env_file), os.environ if environ is None else environ
    found: dict[str, str] = {}
    for name in (*in_file, *around):
        if name in known or _has_no_effect(name):
            continue
        likeness = NEAR_IN_ENVIRONMENT
        if name in in_file:
            likeness = NEAR_IN_FAMILY if name.startswith(FAMILIES) else NEAR_IN_FILE
        close = get_close_matches(name, known, 1, likeness)
        if close and close[0] not in in_file and close[0] not in around:
            found[name] = f"{name} is not a setting; did you mean {close[0]}?"
    return list(found.values())


def refuse_slips(environ: Mapping[str, str] | None = None, env_file: Path = Path(".env")) -> None:
    """Raise `BadSettings` if a name is probably a misspelt setting, which would have no effect."""
    if found := slips(environ, env_file):
        which = "it" if len(found) == 1 else "them"
        raise BadSettings(
            "\n".join([*found, f"correct {which}, or remove {which} from .env or the environment"])
        )


def without_effect(env_file: Path = Path(".env")) -> str:
    """Return a line with the names in the file that this version knows but does not use yet; empty if there
    are none. The environment is not searched: there such names may belong to other programs."""
    names = [name for name in env_file_values(env_file) if _has_no_effect(name)]
    verb = "has" if len(names) == 1 else "have"
    return f"{', '.join(names)} in {env_file} {verb} no effect in this version" if names else ""


def _has_no_effect(name: str) -> bool:
    is_ours = name.lower() in TYPES
    return name in WITHOUT_EFFECT or (name.startswith("CELERY_") and not is_ours)
