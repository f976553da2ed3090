"""Random streams of requests in queues with quota, through an engine that keeps places: whatever is kept, its
owner's queue has room for it, and nobody is kept out for one that could not begin."""

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.core.device import Device
from gpu_orchestrator.core.node import node
from gpu_orchestrator.core.queue_terms import QueueTerms
from gpu_orchestrator.core.request import GangTerms
from gpu_orchestrator.engine.events import Event, NodeUpdated, QueueRemoved, QueueUpdated, RequestAdded
from tests.properties.test_reservations import GPUS, Promises
from tests.support import quota_oracle
from tests.support.builders import request
from tests.support.examples import cases

SEEDS = st.integers(0, 10**6)
PARENTS = {"org": "", "ml": "org", "web": "org", "lab": ""}
MODEL_OF = {"a": "H100", "b": "L4", "c": "H100"}


class QueuePlay(Promises):
    """Looks at every place that is kept, after every event."""

    def __init__(self, rng: Random, **rules: Any) -> None:
        self.declared: dict[str, QueueTerms] = {}
        self.queue_of: dict[str, str] = {}
        super().__init__(rng, 0, **rules)
        devices = {name: [Device(at, model=model) for at in range(GPUS)] for name, model in MODEL_OF.items()}
        self.tell([NodeUpdated(node(name, each)) for name, each in devices.items()])

    def tell(self, events: list[Event]) -> None:
        for each in events:
            if isinstance(each, QueueUpdated):
                self.declared[each.terms.name] = each.terms
            elif isinstance(each, QueueRemoved):
                self.declared.pop(each.name, None)
            elif isinstance(each, RequestAdded):
                self.queue_of[each.request.key] = each.request.queue
        super().tell(events)
        for kept in self.engine.kept():
            queue = kept.waiting.request.queue
            if queue:
                assert not self._exceeded(queue, [(each.node, len(each.devices)) for each in kept.rooms])

    def _exceeded(self, queue: str, place: list[tuple[str, int]]) -> str:
        """Return what the queue and those above it would use too much of, if this began."""
        held = [(self.queue_of[key], each.node, len(each.devices)) for key, each in self.held.items()]
        used: dict[str, dict[str, int]] = {}
        for name, where, gpus in (*held, *((queue, *each) for each in place)):
            by_model = used.setdefault(name, {})
            by_model[MODEL_OF[where]] = by_model.get(MODEL_OF[where], 0) + 1000 * gpus
        return quota_oracle.exceeded(queue, {MODEL_OF[where] for where, _ in place}, used, self.declared)


@cases(30)
@given(SEEDS, st.integers(1, 3), st.integers(1, 40))
def test_what_is_kept_may_begin_by_the_quota(seed: int, most: int, length: int) -> None:
    rng, now = Random(seed), 0.0
    play = QueuePlay(rng, most=most, holds=1, hold_after_s=50.0, hold_s=20.0)
    play.tell([QueueUpdated(_terms(rng, name)) for name in PARENTS])
    for number in range(length):
        now += rng.choice((0.0, 1.0, 7.0))
        if rng.random() < 0.2:
            name = rng.choice(list(PARENTS))
            is_gone = rng.random() < 0.2
            play.at(now, QueueRemoved(name) if is_gone else QueueUpdated(_terms(rng, name)))
        members, queue = rng.choice((1, 1, 1, 2)), rng.choice(("", *PARENTS))
        models = rng.choice(((), (), ("H100",), ("H100", "L4")))
        gpus, run_s = rng.choice((1, 1, 2, 3, 4)), float(rng.choice((0, 5, 20, 60, 100)))
        terms = GangTerms(f"g{number}", rng.randint(1, members)) if members > 1 else None
        for member in range(members):
            key = f"r{number}/{member}"
            play.real_s[key] = (run_s or 50.0) * rng.choice((0.3, 0.9, 1.0))
            asked = request(key, gpus, run_s=run_s, gang=terms, queue=queue, models=models)
            play.at(now, RequestAdded(asked))
    play.run(1e4)
    play.tell([QueueUpdated(QueueTerms(name, parent)) for name, parent in PARENTS.items()])
    play.run(1e6)
    assert play.held == {}
    assert play.engine.kept() == []
    assert not play.engine.has_waiting, "with limits for nothing all of them ran"


def _terms(rng: Random, name: str) -> QueueTerms:
    def amounts() -> dict[str, int]:
        some = {model: rng.randint(0, 8) * 1000 for model in ("H100", "L4") if rng.random() < 0.25}
        return some | ({"*": rng.randint(0, 12) * 1000} if rng.random() < 0.6 else {})

    borrows = rng.random() < 0.8
    return QueueTerms(name, PARENTS[name], guaranteed=amounts(), limit=amounts(), borrowing=borrows)


@cases(12)
@given(
    SEEDS,
    st.sampled_from(["its own queue", "a limit for one model", "a queue beside it", "a gang"]),
    st.sampled_from((20.0, 150.0)),
    st.booleans(),
)
def test_no_stream_of_small_ones_starves_a_large_one_of_a_full_queue(
    seed: int, where: str, run_s: float, declares: bool
) -> None:
    """They never stop coming, and use up what the queue may use. There are GPUs enough."""
    rng = Random(seed)
    play = QueuePlay(rng, most=2, holds=rng.choice((1, 2)), hold_after_s=100.0, hold_s=50.0)
    budget = "H100" if where == "a limit for one model" else "*"
    terms = [QueueTerms("org", limit={budget: 4000}), QueueTerms("ml", "org"), QueueTerms("web", "org")]
    play.tell(list(map(QueueUpdated, terms)))
    queue = "web" if where == "a queue beside it" else "ml"
    now, number, until = 0.0, 0, 600.0 + 20.0 * run_s
    while now < until:
        key = f"s{number}"
        play.real_s[key] = run_s * rng.uniform(0.5, 1.0)
        asked = request(key, 1, queue=queue, models=("H100",), run_s=run_s if declares else 0.0)
        play.at(now, RequestAdded(asked))
        now, number = now + run_s / 4 / 1.2, number + 1
    members = 2 if where == "a gang" else 1
    large = [f"b0/{at}" for at in range(members)]
    for key in large:
        play.real_s[key] = 100.0
        gang = GangTerms("g", members) if members > 1 else None
        play.at(run_s, RequestAdded(request(key, GPUS // members, queue="ml", models=("H100",), gang=gang)))
    play.run(until)
    assert all(key in play.began for key in large)
