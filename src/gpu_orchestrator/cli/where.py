"""Which server the commands talk to: the options of the command line, and then what any client looks at."""

from collections.abc import Mapping
from pathlib import Path

from gpu_orchestrator.cli.options import Server
from gpu_orchestrator.client import where
from gpu_orchestrator.client.errors import BadPlace
from gpu_orchestrator.client.where import (
    DEFAULT,
    DEFAULT_URL,
    Given,
    Place,
    checked,
    checked_key,
    env_values,
    login_file,
    read_key,
)

__all__ = (
    "DEFAULT",
    "DEFAULT_URL",
    "BadPlace",
    "Place",
    "checked",
    "checked_key",
    "env_values",
    "find",
    "login_file",
    "read_key",
)


def find(given: Server, environ: Mapping[str, str] | None = None, env_file: Path = Path(".env")) -> Place:
    """Return the server to ask."""
    asked = Given(
        url=given.url,
        key_file=given.key_file,
        ca=str(given.ca or ""),
        url_name="--url",
        key_name="--key-file",
    )
    return where.find(asked, environ, env_file)
