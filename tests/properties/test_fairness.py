"""Tenants share devices evenly, whatever they request, in whatever order, however long it takes."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.engine.engine import Engine
from gpu_orchestrator.engine.events import (
    Event,
    LimitChanged,
    NodeUpdated,
    Place,
    Placed,
    RequestAdded,
    RequestRemoved,
)
from gpu_orchestrator.engine.order import FairBands
from gpu_orchestrator.policies.registry import Registry
from tests.support.builders import node, request
from tests.support.examples import cases

DEVICES = 2
WARM_UP = 20


@dataclass
class Shop:
    """Two devices, tenants with tasks of a length each, and a clock. `served` are tenants, first begun first;
    `used` is what each has had of the devices, in seconds, of what has ended."""

    lengths: dict[str, float]
    weights: dict[str, float] = field(default_factory=dict)
    now: float = 0.0
    served: list[str] = field(default_factory=list)
    used: Counter[str] = field(default_factory=Counter)
    most_at_once: Counter[str] = field(default_factory=Counter)
    running: list[tuple[float, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        order = FairBands(weight_of=lambda tenant: self.weights.get(tenant, 1.0))
        self.engine = Engine(Registry().policy_of, Random(1), order=order)
        self.tell(NodeUpdated(node("a", DEVICES)))

    def tell(self, *events: Event) -> None:
        for action in self.engine.handle_all(events, self.now):
            if isinstance(action, Place):
                tenant = action.request.tenant
                self.served.append(tenant)
                heappush(self.running, (self.now + self.lengths[tenant], action.request.key, tenant))
                self.tell(Placed(action.request.key))
        for tenant, count in Counter(tenant for _, _, tenant in self.running).items():
            self.most_at_once[tenant] = max(count, self.most_at_once[tenant])

    def submit(self, tenant: str, count: int) -> None:
        self.tell(*(RequestAdded(request(f"{tenant}{self.now}-{i}", 1, tenant=tenant)) for i in range(count)))

    def work(self) -> Iterator[None]:
        """Until nothing runs; a step for every end."""
        while self.running:
            self.now, key, tenant = heappop(self.running)
            self.used[tenant] += self.lengths[tenant]  # type: ignore[assignment]
            self.tell(RequestRemoved(key))
            yield


@cases(25)
@given(
    count=st.integers(30, 120),
    first=st.sampled_from(["u", "v"]),
    late_s=st.sampled_from([0.0, 0.3, 7.0]),
    length_s=st.sampled_from([0.001, 0.05, 3.0]),
)
def test_equal_tasks_are_served_in_turn_at_any_prefix(
    count: int, first: str, late_s: float, length_s: float
) -> None:
    """Also when one tenant submitted all of its tasks before the other came."""
    shop = Shop({"u": length_s, "v": length_s})
    second = "v" if first == "u" else "u"
    shop.submit(first, count)
    work = shop.work()
    while shop.now < late_s and next(work, "over") is None:
        pass
    shop.submit(second, count)
    before = len(shop.served)
    for _ in shop.work():
        pass
    assert len(shop.served) == 2 * count
    both = shop.served[before:]
    alone = next((at for at in range(len(both)) if len(set(both[at:])) == 1), len(both))
    for at in range(WARM_UP, alone):
        share = both[:at].count(second) / at
        assert 0.45 <= share <= 0.55, f"{share:.0%} of the first {at}"


@cases(25)
@given(
    lengths=st.tuples(st.floats(0.05, 20_000.0), st.floats(0.05, 20_000.0)),
    weight=st.sampled_from([0.5, 1.0, 3.0]),
    counts=st.tuples(st.integers(20, 60), st.integers(20, 60)),
)
def test_devices_are_shared_by_time_and_weight_not_by_number(
    lengths: tuple[float, float], weight: float, counts: tuple[int, int]
) -> None:
    """While both want more, neither is ahead by more than what the devices hold of the longest task."""
    shop = Shop({"u": lengths[0], "v": lengths[1]}, weights={"u": weight})
    shop.submit("u", counts[0])
    shop.submit("v", counts[1])
    ahead_s = (DEVICES + 1) * max(lengths) * (1 + 1 / weight) + 0.02 * sum(counts)
    for _ in shop.work():
        begun = Counter(shop.served)
        if begun["u"] == counts[0] or begun["v"] == counts[1]:
            break
        assert abs(shop.used["u"] / weight - shop.used["v"]) <= ahead_s


@cases(25)
@given(most=st.integers(1, 3), counts=st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_flow_stays_within_its_limit_and_does_not_block_others(most: int, counts: tuple[int, int]) -> None:
    shop = Shop({"u": 1.0, "v": 1.0})
    shop.tell(LimitChanged("u", most))
    shop.submit("u", counts[0])
    shop.submit("v", counts[1])
    for _ in shop.work():
        begun = Counter(shop.served)
        waits = {"u": counts[0] - begun["u"], "v": counts[1] - begun["v"]}
        idle = DEVICES - len(shop.running)
        may = waits["v"] or (waits["u"] and sum(t == "u" for _, _, t in shop.running) < most)
        assert not (idle and may), "a device idles though a request may have it"
    assert shop.most_at_once["u"] <= most
    assert len(shop.served) == sum(counts)
