"""What one completion costs the engine while many different shapes wait, for `make bench-scale`: as the
manager runs it, with reservations off, and with a place kept for a task of all GPUs of a worker."""

import statistics
import time
from collections import deque
from random import Random

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.api import session
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.dispatch import reserving
from gpu_orchestrator.apps.manager.fleet import strategies
from gpu_orchestrator.apps.manager.fleet.nodes import MemoryPolicy, WorkerState, node_of, request_of
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.order import FairBands
from gpu_orchestrator.engine.reservation_rules import ReservationRules

WORKERS, SLOTS, NOW = 4, 8, 1000.0
EVERY_S, LARGE_AFTER = 0.05, 100
"""How often one completes, and how many until a place is kept for a large one."""
ON = reserving.rules(Settings(), lambda: NOW)


def completion_ms(
    shapes: int, completions: int = 30, *, rules: ReservationRules = ON, large: bool = False
) -> float:
    """Return the median CPU ms from a completion until the engine waits again, with this many shapes
    waiting, and if it says so a large task for which a place is kept."""
    engine = Engine(
        strategies.registry("balanced").policy_of,
        Random(1),
        order=FairBands(),
        max_decisions=200,
        explains=False,
        reservations=rules,
    )
    play = _Play(engine)
    for number in range(WORKERS):
        devices = tuple(session.Device(at, f"u{at}", "nvidia", "L4", 24_000) for at in range(SLOTS))
        hello = session.Hello(f"w{number}", "i", devices, task_types=("echo",), max_concurrent=SLOTS)
        engine.handle(events.NodeUpdated(node_of(WorkerState(hello), MemoryPolicy(), {})), NOW)
    for number in range(WORKERS * SLOTS):
        play.until_quiet(events.RequestAdded(request_of(f"run{number}", TaskSpec("echo", tenant="other"))))
    if large:
        task = TaskSpec("echo", gpus=SLOTS, tenant="large")
        play.until_quiet(events.RequestAdded(request_of("large", task)))
    for number in range(max(shapes, 2 * LARGE_AFTER) if large else shapes):
        spec = TaskSpec("echo", memory_mib=1000 + number % shapes, tenant="many")
        engine.take_in([events.RequestAdded(request_of(f"q{number}", spec))], NOW)
    play.until_quiet(events.Tick())
    if large:
        for _ in range(LARGE_AFTER):
            if not engine.kept():
                play.completion_ms()
        assert [each.name for each in engine.kept()] == ["large"]
    return statistics.median(play.completion_ms() for _ in range(completions))


class _Play:
    """Carries out what the engine decides. Those that run complete in the order in which they began."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._now = engine, NOW
        self._running = deque[str]()

    def completion_ms(self) -> float:
        self._now += EVERY_S
        name = self._running.popleft()
        began = time.process_time()
        self.until_quiet(events.RequestRemoved(name))
        return (time.process_time() - began) * 1000

    def until_quiet(self, event: events.Event) -> None:
        engine, left = self._engine, [event]
        while left or engine.deadline(self._now) == self._now:
            actions = engine.handle(left.pop() if left else events.Tick(), self._now)
            names = [each.request.key for each in actions if isinstance(each, events.Place)]
            self._running.extend(names)
            left.extend(map(events.Placed, names))
