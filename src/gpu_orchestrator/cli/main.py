"""The entry point: builds the command line and runs what was asked for."""

from cyclopts import App

from gpu_orchestrator import __version__
from gpu_orchestrator.cli.operator import operator
from gpu_orchestrator.cli.scheduler import scheduler

app = App(
    name="gpu-orchestrator", help="Gets every GPU workload onto exactly the right GPUs.", version=__version__
)
# Named, not imported: a command's modules are loaded when it runs, so that the others start quickly.
app.command(
    "gpu_orchestrator.cli.doctor:doctor", help="Check the way to the cluster, our kinds and our rights."
)

app.command(operator)
app.command(scheduler)


def main() -> None:
    app()
