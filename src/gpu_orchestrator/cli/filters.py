"""Options that choose tasks, for `task list`, `watch`, `cancel` and `retry`."""

from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter

from gpu_orchestrator.cli import output
from gpu_orchestrator.cli.mistakes import unknown

STATES = ("scheduled", "queued", "assigned", "running", "completed", "failed", "cancelled", "dead")
WHICH_TASKS = Group("Which tasks", sort_key=45)


@Parameter(name="*", group=WHICH_TASKS)
@dataclass(frozen=True, slots=True)
class Filter:
    """What the chosen tasks have in common; empty means all."""

    status: Annotated[
        tuple[str, ...],
        Parameter(
            name="--status",
            metavar="STATE",
            help=f"Only in this state: {', '.join(STATES)}. May be repeated.",
        ),
    ] = ()
    type_: Annotated[
        str, Parameter(name="--type", metavar="TYPE", help="Only of this type, such as echo.")
    ] = ""
    label: Annotated[
        tuple[str, ...],
        Parameter(name="--label", metavar="KEY=VALUE", help="Only with this label. May be repeated."),
    ] = ()
    worker: Annotated[str, Parameter(name="--worker", metavar="NAME", help="Only on this worker.")] = ""
    owner: Annotated[
        str, Parameter(name="--owner", metavar="NAME", help="Only of this owner (for admins).")
    ] = ""

    @property
    def is_empty(self) -> bool:
        return self == ALL

    def query(self) -> list[tuple[str, object]]:
        """Return it for `GET /tasks`."""
        return [
            ("status", ",".join(self.states())),
            ("task_type", self.type_),
            *(("label", each) for each in self.label),
            ("worker_id", self.worker),
            ("owner", self.owner),
        ]

    def body(self) -> dict[str, Any]:
        """Return it for `POST /tasks/cancel` and `POST /tasks/retry`."""
        given = {
            "status": self.states(),
            "task_type": self.type_,
            "labels": labels(self.label),
            "worker_id": self.worker,
            "owner": self.owner,
        }
        return {name: value for name, value in given.items() if value}

    def states(self) -> list[str]:
        """Return the states; several may be given with commas between."""
        found = [state for given in self.status for state in given.split(",") if state]
        for state in found:
            if state not in STATES:
                output.fail(unknown("status", state, STATES), code=2)
        return found


ALL = Filter()


def labels(given: tuple[str, ...], option: str = "--label") -> dict[str, str]:
    """Return labels that were given as pairs."""
    found: dict[str, str] = {}
    for pair in given:
        name, is_pair, value = pair.partition("=")
        if not is_pair or not name:
            output.fail(f"{option} {pair} is not a label; write {option} KEY=VALUE", code=2)
        found[name] = value
    return found
