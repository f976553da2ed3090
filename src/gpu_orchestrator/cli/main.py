"""The entry point: builds the command line and runs what was asked for."""

from cyclopts import App

from gpu_orchestrator import __version__

app = App(
    name="gpu-orchestrator", help="Gets every GPU workload onto exactly the right GPUs.", version=__version__
)
app.command("gpu_orchestrator.cli.up:up", name="up")
app.command("gpu_orchestrator.cli.server:server", name="server")
app.command("gpu_orchestrator.cli.task:app", name="task")
app.command("gpu_orchestrator.cli.workers:status", name="status")
app.command("gpu_orchestrator.cli.workers:app", name="worker")


def main() -> None:
    app()
