"""The entry point: build the command line and run the command."""

import os
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from gpu_orchestrator import __version__

app = App(
    name="gpu-orchestrator", help="Get every GPU workload onto exactly the right GPUs.", version=__version__
)
# Named, not imported: a command's modules are loaded only when it runs, so that the others start quickly.
for name, where in {
    "up": "up:up",
    "server": "server:server",
    "worker": "workers:app",
    "task": "task:app",
    "key": "key:app",
    "audit": "audit:audit",
    "status": "workers:status",
    "backup": "backup:backup",
    "restore": "backup:restore",
    "operator": "operator:operator",
    "scheduler": "scheduler:scheduler",
    "doctor": "doctor:doctor",
}.items():
    app.command(f"gpu_orchestrator.cli.{where}", name=name)


@app.meta.default
def launch(
    *words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)], ca: Path | None = None
) -> None:
    """Get every GPU workload onto exactly the right GPUs.

    Parameters
    ----------
    ca
        A file with the certificates to trust, for a server with TLS; by default those of the system.
    """
    if ca is not None:
        os.environ["GPU_ORCHESTRATOR_CA"] = str(ca)
    app(words)


def main() -> None:
    app.meta()
