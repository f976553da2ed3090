"""Conditions in the standard form, shared by the objects whose status has them."""

from collections.abc import Iterable
from typing import Annotated, Literal, TypeAlias

from gpu_orchestrator.api.schema import INT64, about, moment, number, text
from gpu_orchestrator.api.wire import Wire

Truth: TypeAlias = Literal["True", "False", "Unknown"]


class Condition(Wire, frozen=True, gc=False):
    """One aspect of the object's state, in the standard form."""

    type: Annotated[str, text("Name of the condition.", 1, 316)]
    status: Annotated[Truth, about("Whether it holds: True, False or Unknown.")]
    reason: Annotated[str, text("Why, in one CamelCase word, for machines.", 0, 1024)] = ""
    message: Annotated[str, text("Why, in a sentence, for people.", 0, 32768)] = ""
    last_transition_time: Annotated[str, moment("When the status of this condition last changed.")] = ""
    observed_generation: Annotated[int, number("Generation of the spec this speaks of.", 0, INT64)] = 0


Conditions: TypeAlias = Annotated[
    list[Condition],
    about("The state in the standard form, one entry per type.", list_type="map", list_map_keys=["type"]),
]


def find(conditions: Iterable[Condition], kind: str) -> Condition | None:
    return next((condition for condition in conditions if condition.type == kind), None)


def holds(conditions: Iterable[Condition], kind: str) -> bool:
    found = find(conditions, kind)
    return found is not None and found.status == "True"
