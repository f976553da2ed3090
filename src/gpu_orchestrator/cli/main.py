"""The entry point: builds the command line and runs what was asked for."""

from cyclopts import App

from gpu_orchestrator import __version__

app = App(
    name="gpu-orchestrator", help="Gets every GPU workload onto exactly the right GPUs.", version=__version__
)
# Named, not imported: a command's modules are loaded when it runs, so that the others start quickly.
for name, where in {
    "up": "up:up",
    "server": "server:server",
    "worker": "workers:app",
    "task": "task:app",
    "status": "workers:status",
    "operator": "operator:operator",
    "scheduler": "scheduler:scheduler",
    "doctor": "doctor:doctor",
}.items():
    app.command(f"gpu_orchestrator.cli.{where}", name=name)


def main() -> None:
    app()
