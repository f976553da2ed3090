"""The entry point: build the command line and run the command.

Exit codes: 0 done, 1 the command could not do it, 2 it was not understood, 130 Ctrl-C.
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple

from cyclopts import App, CycloptsError, Group, Parameter

from gpu_orchestrator import __version__
from gpu_orchestrator.cli import collector, output
from gpu_orchestrator.cli.help_pages import Pages

USE = Group("Use it", sort_key=1)
OPERATE = Group("Operate it", sort_key=2)
KUBERNETES = Group("On Kubernetes", sort_key=3)
OF_THE_CLIENT = ("--url", "--key-file", "--ca")
"""Options that may also stand before the command."""


class Command(NamedTuple):
    """`place` is named, not imported: a command's modules are loaded only when it runs, so that the others
    start quickly."""

    name: str
    place: str
    group: Group
    line: str


COMMANDS = (
    Command("up", "up:up", USE, "Start everything on this machine: store, cluster manager and a worker."),
    Command("status", "workers:status", USE, "Show the state of the cluster."),
    Command("task", "task:app", USE, "Submit tasks and follow them."),
    Command("schedule", "schedule:app", USE, "Queue tasks at times that a cron expression names."),
    Command("file", "file:app", USE, "Upload files for tasks, and download what tasks leave."),
    Command("events", "events:events", USE, "Show what happened, or follow what happens."),
    Command("login", "login:login", USE, "Store the address of a server and your key for it."),
    Command("logout", "login:logout", USE, "Forget what `login` stored."),
    Command(
        "completion", "completion:completion", USE, "Print a script that completes commands in your shell."
    ),
    Command(
        "server", "server:server", OPERATE, "Run the cluster manager alone; workers join from elsewhere."
    ),
    Command(
        "worker",
        "workers:app",
        OPERATE,
        "Run a worker on this machine; list, show, cordon and remove workers.",
    ),
    Command("model", "model:app", OPERATE, "Declare models; load, unload and pin them."),
    Command(
        "devices", "devices:devices", OPERATE, "Show the GPUs of this machine and how they are connected."
    ),
    Command("key", "key:app", OPERATE, "Create, list and revoke keys."),
    Command("audit", "audit:audit", OPERATE, "Show who changed what."),
    Command(
        "doctor", "doctor:doctor", OPERATE, "Check that everything is as it should be, and say what is not."
    ),
    Command(
        "defrag", "defrag:defrag", KUBERNETES, "Say which pods must move so that others find room; move them."
    ),
    Command("backup", "backup:backup", OPERATE, "Write all tasks, results and keys into a file."),
    Command("restore", "backup:restore", OPERATE, "Restore a backup into an empty store."),
    Command(
        "operator", "operator:operator", KUBERNETES, "Run GPUWorkloads as Jobs on the nodes found for them."
    ),
    Command("scheduler", "scheduler:scheduler", KUBERNETES, "Bind pods that claim GPUs to exact devices."),
    Command("webhook", "webhook:webhook", KUBERNETES, "Fill in pods that claim GPUs before they are stored."),
    Command("agent", "agent:agent", KUBERNETES, "Report the GPUs of one node, and who uses them."),
)


def application(words: Sequence[str] = ()) -> App:
    """Return the command line. The lines above are for the list of commands; the page of one command has its
    own text."""
    chosen = words[0] if words else ""
    app = App(
        name=output.PROGRAM,
        help="Get every GPU workload onto exactly the right GPUs.",
        version=__version__,
        version_format="plaintext",
        help_format="plaintext",
        help_formatter=Pages(),
        default_parameter=Parameter(negative=()),
        group_commands=Group("Commands", sort_key=9),
    )
    for at, each in enumerate(COMMANDS):
        app.command(
            f"gpu_orchestrator.cli.{each.place}",
            name=each.name,
            group=each.group,
            sort_key=at,
            help=None if each.name == chosen else each.line,
        )
    return app


def in_place(words: Sequence[str]) -> list[str]:
    """Move options of the client that stand before the command behind it: `--url U task list`."""
    leading: list[str] = []
    rest = list(words)
    while rest and rest[0].partition("=")[0] in OF_THE_CLIENT:
        count = 1 if "=" in rest[0] else 2
        leading, rest = [*leading, *rest[:count]], rest[count:]
    end = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:end], *leading, *rest[end:]]


def run(words: list[str]) -> None:
    """Run a command line; ends with SystemExit if it fails."""
    words = in_place([*words[1:], "--help"] if words[:1] == ["help"] else words)
    if words[:2] in (["task", "submit"], ["schedule", "add"]):  # a lone `-` would be taken for an option
        words = ["@-" if each == "-" else each for each in words]
    try:
        application(words)(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        from gpu_orchestrator.cli import mistakes

        output.fail(mistakes.words(error), code=2)
    except ImportError as error:
        from gpu_orchestrator.cli import mistakes

        if not (missing := mistakes.missing(words, error)):
            raise
        output.fail(missing)


def main() -> None:
    collector.pause()
    output.prepare()
    try:
        run(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
