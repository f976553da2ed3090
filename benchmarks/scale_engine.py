"""What one completion costs the engine while many different shapes wait, for `make bench-scale`."""

import statistics
import time
from random import Random

from gpu_orchestrator.api import session
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.fleet import strategies
from gpu_orchestrator.apps.manager.fleet.nodes import MemoryPolicy, WorkerState, node_of, request_of
from gpu_orchestrator.engine import events
from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.order import FairBands

WORKERS, SLOTS, NOW = 4, 8, 1000.0


def completion_ms(shapes: int, completions: int = 30) -> float:
    """Return the median CPU ms from a completion until the engine waits again, with this many shapes
    waiting."""
    engine = Engine(
        strategies.registry("balanced").policy_of,
        Random(1),
        order=FairBands(),
        max_decisions=200,
    )
    for number in range(WORKERS):
        devices = tuple(session.Device(at, f"u{at}", "nvidia", "L4", 24_000) for at in range(SLOTS))
        hello = session.Hello(f"w{number}", "i", devices, task_types=("echo",), max_concurrent=SLOTS)
        engine.handle(events.NodeUpdated(node_of(WorkerState(hello), MemoryPolicy(), {})), NOW)
    running = [f"run{number}" for number in range(WORKERS * SLOTS)]
    for name in running:
        _until_quiet(engine, events.RequestAdded(request_of(name, TaskSpec("echo", tenant="other"))))
    for number in range(shapes):
        spec = TaskSpec("echo", memory_mib=1000 + number, tenant="many")
        engine.take_in([events.RequestAdded(request_of(f"q{number}", spec))], NOW)
    _until_quiet(engine, events.Tick())
    return statistics.median(_cpu_ms(engine, name) for name in running[:completions])


def _cpu_ms(engine: Engine, name: str) -> float:
    began = time.process_time()
    _until_quiet(engine, events.RequestRemoved(name))
    return (time.process_time() - began) * 1000


def _until_quiet(engine: Engine, event: events.Event) -> None:
    left: list[events.Event] = [event]
    while left or engine.deadline(NOW) == NOW:
        actions = engine.handle(left.pop() if left else events.Tick(), NOW)
        places = (action for action in actions if isinstance(action, events.Place))
        left.extend(events.Placed(place.request.key) for place in places)
