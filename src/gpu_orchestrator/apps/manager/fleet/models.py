"""What is known of models: what operators declared, what workers measured, where each is pinned.

A process keeps one book, as the store has it (`models/model_sync.py`). Placement, admission and `explain`
read it, so all of them reserve the same memory for a task. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from gpu_orchestrator.adapters.store.models import ModelRow
from gpu_orchestrator.api import session
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.core.copies import Copy

Backend = Literal["class"]
"""How a model is served: by a class of the worker's operator."""
ROUND_MIB = 64
"""Measured sizes are rounded up to this: each size is a shape of its own for the scheduler."""
EVERYWHERE = "*"


class Declared(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an operator wrote. `handler` is the task type that loads the model. `memory_mib` is what it takes
    on each of its devices, 0 if nobody knows. `gpus` is how many devices a request under `/v1` gets."""

    handler: str
    memory_mib: int = 0
    path: str = ""
    options: msgspec.Raw = msgspec.Raw(b"{}")
    load_s: float = 0.0
    backend: Backend = "class"
    gpus: int = 1


class Measured(msgspec.Struct, frozen=True, omit_defaults=True):
    """What workers measured of a model on devices of one kind."""

    mib: int = 0
    load_s: float = 0.0


@dataclass(frozen=True, slots=True)
class KnownModel:
    name: str
    declared: Declared | None = None
    measured: Mapping[str, Measured] = field(default_factory=dict)
    pins: tuple[str, ...] = ()
    created_ms: int = 0

    @property
    def memory_mib(self) -> int:
        """Return what to reserve on each device: what was measured, else what was declared; 0 if neither."""
        if found := max((each.mib for each in self.measured.values()), default=0):
            return -(-found // ROUND_MIB) * ROUND_MIB
        return self.declared.memory_mib if self.declared else 0

    @property
    def load_s(self) -> float | None:
        if found := [each.load_s for each in self.measured.values() if each.load_s]:
            return sum(found) / len(found)
        return (self.declared.load_s or None) if self.declared else None

    def is_pinned_on(self, worker: str) -> bool:
        return worker in self.pins or EVERYWHERE in self.pins


_declared = msgspec.json.Decoder(Declared)
_measured = msgspec.json.Decoder(dict[str, Measured])


def known_model(row: ModelRow) -> KnownModel:
    return KnownModel(
        row.name,
        _declared.decode(row.declared) if row.declared else None,
        _measured.decode(row.measured) if row.measured else {},
        tuple(row.pins.split()),
        row.created_ms,
    )


class ModelBook:
    """The models by name."""

    def __init__(self) -> None:
        self.models: dict[str, KnownModel] = {}
        self.handlers: frozenset[str] = frozenset()
        """The task types for which a model is declared."""

    def replace(self, models: Iterable[KnownModel]) -> None:
        self.models = {each.name: each for each in models}
        self.handlers = frozenset(each.declared.handler for each in self.models.values() if each.declared)

    def get(self, name: str) -> KnownModel | None:
        return self.models.get(name)

    def memory_mib(self, model: str) -> int:
        """Return what this model takes on each device; 0 if nobody knows."""
        known = self.models.get(model)
        return known.memory_mib if known else 0

    def of_handler(self, handler: str) -> list[str]:
        """Return the names of the models that tasks of this type can name."""
        found = (
            each.name for each in self.models.values() if each.declared and each.declared.handler == handler
        )
        return sorted({handler, *found})

    def message(self, spec: TaskSpec) -> session.Model | None:
        """Return what a worker is told to load for a task; None if that loads nothing."""
        if not spec.model:
            return None
        known = self.models.get(spec.model)
        if known is None or known.declared is None:
            return session.Model(spec.model)
        return session.Model(spec.model, known.declared.path, known.declared.options)

    def pins_on(self, worker: str) -> tuple[str, ...]:
        return tuple(sorted(each.name for each in self.models.values() if each.is_pinned_on(worker)))

    def learnt(self, copies: Iterable[session.Copy], device_models: Mapping[int, str]) -> dict[str, str]:
        """Return, by model, what to store of what a worker measured, as JSON; nothing that is known well
        enough."""
        found: dict[str, str] = {}
        for copy in copies:
            if copy.is_loaded and not copy.task and copy.uses:
                before = self.models.get(copy.model, KnownModel(copy.model)).measured
                kind = next((device_models.get(each, "") for each in copy.devices), "")
                known = before.get(kind, Measured())
                new = Measured(max(known.mib, copy.used_mib), copy.load_s)
                if _is_news(known, new):
                    found[copy.model] = msgspec.json.encode({**before, kind: new}).decode()
        return found


def _is_news(known: Measured, new: Measured) -> bool:
    """Return whether a measurement differs so much that it is worth a write."""
    has_grown = new.mib - known.mib > max(known.mib // 50, ROUND_MIB)
    is_first = not known.load_s
    other_time = not 0.5 < (new.load_s + 0.1) / (known.load_s + 0.1) < 2.0
    return has_grown or is_first or other_time


def copies_of(copies: Iterable[session.Copy], reported_s: float) -> tuple[Copy, ...]:
    """Return the copies of a report as the core knows them, by the clock of the store."""
    return tuple(
        Copy(
            each.model,
            each.devices,
            each.used_mib,
            each.load_s if each.is_loaded else 0.0,
            reported_s - each.loaded_ago_s,
            reported_s - each.used_ago_s,
            each.uses,
            bool(each.task),
            each.pinned,
            each.number,
        )
        for each in copies
    )
