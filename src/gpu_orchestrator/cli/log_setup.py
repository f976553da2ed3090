"""Configure the logs of a worker, an operator or a scheduler: text on a terminal, JSON elsewhere, or as
LOG_FORMAT says; how much, LOG_LEVEL or --v says. All is loaded by then, so garbage is collected again."""

import sys

from gpu_orchestrator.adapters import logs
from gpu_orchestrator.adapters.settings import BadSettings, load
from gpu_orchestrator.cli import collector


def configure(verbosity: int) -> None:
    collector.resume()
    try:
        chosen = load(only=("log_format", "log_level"))
    except BadSettings as error:
        sys.exit(f"gpu-orchestrator: {error}")
    logs.configure(verbosity, style=chosen.log_format, least=chosen.log_level)
