"""Which models are loaded where, which are busy, and when a request for one could begin. Kept by the engine.

A worker reports its copies. Between two reports the engine goes on from its own decisions: a request that was
placed loads its model there, and evicts what has no room beside it.

    cold ──placed──▶ loading, busy ──ended──▶ idle ──placed──▶ busy
                                               │ evicted by the worker, for another placement
                                               ▼
                                              gone

The memory of an idle copy counts as free, because it can be evicted. That of a pinned one does not: a
placement of its own, a pin, holds it while no request uses it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.copies import Copy, faded, uses_now
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine.cache import Cache
from gpu_orchestrator.engine.model_estimates import Estimates
from gpu_orchestrator.engine.model_line import ModelLine

PIN = "pin:"
"""How the keys of pins begin; no task's id has a colon."""
Devices = tuple[int | str, ...]
At = tuple[str, Devices]
"""Model and devices."""


@dataclass(frozen=True, slots=True)
class ModelRules:
    """A request may pass at most `most_passed` older ones because its model is loaded, is passed at most that
    often, and never when it has waited half of `max_wait_s`: the other half is left for loading. A copy that
    was loaded less than `min_loaded_s` ago is not evicted for another model unless that waits as long."""

    max_wait_s: float = 60.0
    most_passed: int = 24
    min_loaded_s: float = 0.0

    def urgent_at(self, since: float) -> float:
        return since + self.max_wait_s / 2


@dataclass(frozen=True, slots=True)
class Run:
    """One request at work. `load_s` is what it was expected to load first, 0 on a loaded copy."""

    model: str
    node: str
    devices: Devices
    began: float
    load_s: float


class Models:
    def __init__(self, rules: ModelRules, cache: Cache) -> None:
        self.rules, self.line, self.estimates = rules, ModelLine(), Estimates()
        self._cache = cache
        self._on: dict[str, dict[At, Copy]] = {}
        self._nodes_of: dict[str, set[str]] = {}
        self._runs: dict[str, Run] = {}
        self._runs_of: dict[str, set[str]] = {}
        self._pins: dict[str, set[str]] = {}
        self._room: dict[str, int] = {}

    def __bool__(self) -> bool:
        """True if any copy is known."""
        return bool(self._on)

    # --- what is known -----------------------------------------------------------------------------------

    def nodes_with_copies(self) -> Iterable[str]:
        return self._on.keys()

    def on(self, node: str) -> list[Copy]:
        """Return all copies on a node, with those that are busy marked so."""
        return list(self._on.get(node, {}).values())

    def idle(self, node: str) -> list[Copy]:
        return [each for each in self._on.get(node, {}).values() if not each.busy]

    def is_busy_on(self, model: str, node: str, devices: set[int]) -> bool:
        """Return True if the copy of a model on exactly these devices is in use. A set of devices has at most
        one copy of it, and its requests run one by one."""
        if not model or node not in self.nodes_of(model):
            return False
        here = (each for each in self._on[node].values() if each.model == model and each.busy)
        return any(set(each.devices) == devices for each in here)

    def may_load(self, model: str, node: str, devices: set[int]) -> bool:
        """Return True if a node has a place for another copy, and these devices none that is in use."""
        return not self.is_full(node) and not self.is_busy_on(model, node, devices)

    def nodes_of(self, model: str) -> set[str]:
        return self._nodes_of.get(model, set())

    def runs_of(self, model: str) -> Iterator[Run]:
        return (self._runs[key] for key in self._runs_of.get(model, ()))

    def most_copies(self, node: str) -> int:
        """Return how many copies the node keeps; 0 if that is not known."""
        return self._room.get(node, 0)

    def is_full(self, node: str, gone: int = 0) -> bool:
        """Return True if the node keeps no further copy after this many are gone."""
        most = self.most_copies(node)
        return bool(most) and len(self._on.get(node, ())) - gone >= most

    def stays(self, key: str) -> bool:
        """Return True if what is held under this key stays when its holder ends: a pin, or the run on a
        pinned copy."""
        if key.startswith(PIN):
            return True
        if (run := self._runs.get(key)) is None:
            return False
        copy = self._on.get(run.node, {}).get((run.model, run.devices))
        return copy is not None and copy.pinned

    def is_pinned(self, model: str) -> bool:
        here = (each for node in self.nodes_of(model) for each in self.on(node))
        return any(each.pinned and each.model == model for each in here)

    def reload_s(self, copy: Copy, now: float) -> float:
        """Return what evicting a copy costs: to load it again, if it is likely to be wanted."""
        load_s = copy.load_s or self.estimates.load_s(copy.model)
        if self.line.count(copy.model):
            return load_s
        return load_s * faded(now - copy.used_at)

    def remaining_s(self, run: Run, now: float) -> float:
        """Return how long a run may still take. One that takes longer than expected: half as long again."""
        elapsed = max(now - run.began, 0.0)
        left = run.load_s + self.estimates.service_s(run.model) - elapsed
        return left if left > 0 else elapsed * 0.5

    def waits_s(self, model: str, now: float, count: int) -> list[float]:
        """Return when the next `count` requests for a model could begin if no further copy is loaded; empty
        if none is loaded or being loaded."""
        ready = sorted(self.remaining_s(run, now) for run in self.runs_of(model))
        if not ready:
            return []
        service_s = self.estimates.service_s(model)
        return [ready[at % len(ready)] + at // len(ready) * service_s for at in range(count)]

    # --- what changes it ---------------------------------------------------------------------------------

    def observe(self, node: str, copies: Iterable[Copy], most: int, now: float) -> list[str]:
        """Take in what a node reports. Return the models that may have a copy to use there now."""
        before = self._on.get(node, {})
        found = {(each.model, each.devices): replace(each, busy=False) for each in copies}
        for run in self._runs.values():
            if run.node == node:
                at = run.model, run.devices
                known = found.get(at) or before.get(at) or Copy(run.model, run.devices, used_at=now)
                found[at] = replace(known, busy=True)
        for at, copy in found.items():
            if copy.load_s and _is_another_load(before.get(at), copy):
                self.estimates.loaded(copy.model, copy.load_s, copy.mib)
        self._replace(node, found)
        self._room[node] = most
        self.settle_pins(node)
        return [model for (model, _), copy in found.items() if not copy.busy]

    def forget(self, node: str) -> None:
        self._replace(node, {})
        self._room.pop(node, None)
        self.settle_pins(node)

    def began(self, request: Request, placement: Placement, now: float, *, is_observed: bool = False) -> None:
        """A request was placed: its copy is busy, and what had to go for it is gone."""
        model, node, devices = request.shape.model, placement.node, tuple(placement.devices)
        on, at = self._on.get(node, {}), (model, devices)
        known = on.get(at)
        load_s = 0.0 if known or is_observed else self.estimates.load_s(model)
        uses = uses_now(known, now) + 1 if known else 1.0
        copy = known or Copy(model, devices, loaded_at=now, load_s=load_s, mib=placement.memory_mib)
        self._replace(node, {**on, at: replace(copy, busy=True, used_at=now, uses=uses)})
        self._runs[placement.key] = Run(model, node, devices, now, load_s)
        self._runs_of.setdefault(model, set()).add(placement.key)
        self.settle_pins(node)

    def expect(self, model: str, placement: Placement, now: float) -> None:
        """A copy is being loaded for nobody yet. The next report says whether it is there."""
        on, devices = self._on.get(placement.node, {}), tuple(placement.devices)
        load_s = self.estimates.load_s(model)
        copy = Copy(model, devices, placement.memory_mib, load_s, now, now)
        self._replace(placement.node, {**on, (model, devices): copy})

    def evicted(self, node: str, copies: Iterable[Copy]) -> None:
        on = dict(self._on.get(node, {}))
        for each in copies:
            on.pop((each.model, each.devices), None)
        self._replace(node, on)

    def ended(self, key: str, now: float, *, has_run: bool = True) -> str | None:
        """A request ended: its copy is idle, unless others use it. Return the model. `has_run` is False for a
        placement that was not carried out: then nothing was loaded."""
        run = self._runs.pop(key, None)
        if run is None:
            return None
        keys = self._runs_of[run.model]
        keys.discard(key)
        if not keys:
            del self._runs_of[run.model]
        on, at = dict(self._on.get(run.node, {})), (run.model, run.devices)
        others = self.runs_of(run.model)
        is_used = any((each.node, each.devices) == (run.node, run.devices) for each in others)
        if at in on and not is_used:
            if not has_run and run.load_s:
                del on[at]
            else:
                on[at] = replace(on[at], busy=False, used_at=now)
            self._replace(run.node, on)
        if has_run:
            self.estimates.served(run.model, max(now - run.began - run.load_s, 0.0))
        self.settle_pins(run.node)
        return run.model

    def unpin(self, node: str, at: At) -> Placement | None:
        """Take the pin of a copy off the cluster, to see what fits there without it. `settle_pins` sets it
        again unless the copy is busy by then."""
        key = _pin_of(node, at)
        if key not in self._pins.get(node, ()):
            return None
        self._pins[node].discard(key)
        pin = self._cache.placement(key)
        self._cache.release(key)
        return pin

    def settle_pins(self, node: str) -> None:
        """Hold the memory of the pinned copies of a node that no request uses."""
        here = self._on.get(node, {}).items()
        wanted = {_pin_of(node, at): copy for at, copy in here if copy.pinned and not copy.busy}
        has = self._pins.get(node, set())
        for key in has - wanted.keys():
            self._cache.release(key)
        for key, copy in wanted.items():
            ids = tuple(each for each in copy.devices if isinstance(each, int))
            pin = Placement(key, node, ids, exclusive=False, milli=0, memory_mib=copy.mib)
            if self._cache.placement(key) != pin:
                self._cache.hold(pin)
        if wanted:
            self._pins[node] = set(wanted)
        else:
            self._pins.pop(node, None)

    def _replace(self, node: str, copies: dict[At, Copy]) -> None:
        before = {model for model, _ in self._on.get(node, {})}
        after = {model for model, _ in copies}
        for model in before - after:
            self._nodes_of[model].discard(node)
            if not self._nodes_of[model]:
                del self._nodes_of[model]
        for model in after - before:
            self._nodes_of.setdefault(model, set()).add(node)
        if copies:
            self._on[node] = copies
        else:
            self._on.pop(node, None)


def _is_another_load(before: Copy | None, now: Copy) -> bool:
    if before is None:
        return True
    if now.number:  # its time may differ a little from one report to the next
        return now.number != before.number
    return now.loaded_at != before.loaded_at


def _pin_of(node: str, at: At) -> str:
    model, devices = at
    return f"{PIN}{node}:{','.join(map(str, devices))}:{model}"
