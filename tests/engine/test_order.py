"""In which order the engine tries requests."""

import pytest

from gpu_orchestrator.core.device import LARGE_MIB
from gpu_orchestrator.core.queue_terms import QueueTerms
from gpu_orchestrator.core.queues import Queues
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine.fair_share import BEGINNING_S, FairShare
from gpu_orchestrator.engine.order import FairBands, Order, PriorityThenTime
from gpu_orchestrator.engine.queue import Queue, Waiting
from gpu_orchestrator.policies.registry import Registry
from tests.support.builders import request

POLICY = Registry().policy()


def served(order: Order, *arrivals: tuple[float, Request]) -> list[str]:
    """Keys in the order in which they are served if all wait."""
    fair_share = FairShare()
    queue = Queue(fair_share)
    for number, (since, asked) in enumerate(arrivals):
        place = order.lane(asked), order.flow(asked), order.rank(asked, since)
        queue.push(Waiting(asked, POLICY, since, number, *place))
    keys = []
    while (waiting := queue.pop()) is not None:
        fair_share.charge(waiting.flow, order.cost(waiting.request))
        keys.append(waiting.request.key)
    assert len(queue) == 0
    return keys


def of(tenant: str, count: int, *, priority: int = 0, gpus: int = 1) -> list[tuple[float, Request]]:
    return [(float(i), request(f"{tenant}{i}", gpus, tenant=tenant, priority=priority)) for i in range(count)]


def test_priority_then_time() -> None:
    asked = [(2.0, request("b")), (1.0, request("a")), (3.0, request("c", priority=1)), (1.0, request("d"))]
    assert served(PriorityThenTime(), *asked) == ["c", "a", "d", "b"]


def test_bands_are_strict_however_long_a_request_waited() -> None:
    old, new = (0.0, request("old", priority=74)), (1e9, request("new", priority=75))
    assert served(FairBands(), old, new) == ["new", "old"]


def test_inside_a_band_waiting_counts_like_priority() -> None:
    """At ten seconds a point, five points are worth fifty seconds."""
    low, high = (0.0, request("low", priority=10)), (49.0, request("high", priority=15))
    assert served(FairBands(), low, high) == ["high", "low"]
    assert served(FairBands(), low, (51.0, high[1])) == ["low", "high"]


def test_tenants_take_turns() -> None:
    assert served(FairBands(), *of("u", 4), *of("v", 2)) == ["u0", "v0", "u1", "v1", "u2", "u3"]


def test_larger_requests_cost_larger_turns() -> None:
    assert served(FairBands(), *of("u", 2, gpus=4), *of("v", 5)) == ["u0", "v0", "v1", "v2", "v3", "u1", "v4"]


def test_tenant_with_twice_the_weight_gets_twice_as_many_turns() -> None:
    weighted = FairBands(weight_of=lambda tenant: 2.0 if tenant == "v" else 1.0)
    first = served(weighted, *of("u", 30), *of("v", 30))[:30]
    assert sum(key.startswith("v") for key in first) == 20


@pytest.mark.parametrize(
    ("asked", "cost"),
    [
        pytest.param(request("r", 2), 2.0, id="whole devices"),
        pytest.param(request("r", 2, share=250), 0.5, id="shares"),
        pytest.param(request("r", 1, memory_mib=LARGE_MIB // 4, shared=True), 0.25, id="memory"),
        pytest.param(request("r", 1, share=500, memory_mib=LARGE_MIB // 4), 0.5, id="the larger of both"),
        pytest.param(request("r", 1, memory_mib=LARGE_MIB * 4, shared=True), 1.0, id="never above a device"),
        pytest.param(request("r", 0), 0.01, id="no device counts a little"),
    ],
)
def test_cost_of_holding(asked: Request, cost: float) -> None:
    assert FairBands().cost(asked) == pytest.approx(cost)


def turn(fair_share: FairShare, flow: str) -> float:
    return fair_share.start(flow)[-1]


def test_holding_is_charged_over_time_while_others_wait() -> None:
    fair_share = FairShare()
    fair_share.pass_time(100.0)
    fair_share.take("a", "u", 2.0)
    fair_share.joins("v")
    fair_share.pass_time(103.0)
    assert (turn(fair_share, "u"), turn(fair_share, "v")) == (6.0, 0.0)
    fair_share.let_go("a")
    fair_share.pass_time(110.0)
    assert turn(fair_share, "u") == 6.0, "what it let go of counts no longer"
    fair_share.pass_time(90.0)
    assert turn(fair_share, "u") == 6.0, "a clock that goes back counts nothing"


@pytest.mark.parametrize(("most", "counted"), [(None, True), (1, False)])
def test_holding_is_free_while_no_other_flow_could_use_it(most: int | None, counted: bool) -> None:
    fair_share = FairShare()
    fair_share.pass_time(0.0)
    fair_share.take("a", "u", 1.0)
    fair_share.joins("u")
    fair_share.pass_time(365 * 86_400.0)
    assert turn(fair_share, "u") == 0.0, "only it waits itself"
    fair_share.take("b", "v", 1.0)
    fair_share.allow("v", most)
    fair_share.joins("v")
    fair_share.pass_time(365 * 86_400.0 + 5)
    assert turn(fair_share, "u") == (5.0 if counted else 0.0), "a full flow wants nothing"
    fair_share.leaves("v")
    fair_share.pass_time(366 * 86_400.0)
    assert turn(fair_share, "u") == (5.0 if counted else 0.0)


def test_flow_at_its_limit_is_skipped_until_it_releases() -> None:
    fair_share = FairShare()
    queue = Queue(fair_share)
    order = FairBands()
    for number, (since, asked) in enumerate([*of("u", 2), *of("v", 1)]):
        queue.push(Waiting(asked, POLICY, since, number, 0, order.flow(asked), order.rank(asked, since)))
    assert fair_share.allow("u", 1) is False
    assert fair_share.take("held", "u", 1.0) is True
    first = queue.pop()
    assert first is not None
    assert first.request.key == "v0"
    assert queue.pop() is None
    assert (len(queue), queue.has_turn()) == (2, False)
    assert fair_share.let_go("held") is True
    second = queue.pop()
    assert second is not None
    assert second.request.key == "u0"


def test_empty_queue_keeps_no_lanes() -> None:
    fair_share = FairShare()
    queue, order = Queue(fair_share), FairBands()
    for number in range(100):
        asked = request(f"p{number}", tenant=f"tenant-{number}")
        queue.push(Waiting(asked, POLICY, 0.0, number, 0, order.flow(asked), order.rank(asked, 0.0)))
        assert queue.pop() is not None
        fair_share.charge(order.flow(asked), 1.0)
        assert queue.pop() is None
        assert not queue.lanes


def test_tenant_that_was_away_has_saved_up_no_turns() -> None:
    fair_share = FairShare()
    for _ in range(100):
        fair_share.charge("busy", 1.0)
    assert turn(fair_share, "away") == pytest.approx(turn(fair_share, "busy") - BEGINNING_S)


def test_removed_request_is_skipped() -> None:
    fair_share = FairShare()
    queue = Queue(fair_share)
    crowd = [
        Waiting(asked, POLICY, since, i, 0, "", (since,)) for i, (since, asked) in enumerate(of("u", 200))
    ]
    for each in crowd:
        queue.push(each)
    for each in crowd[:150]:
        queue.remove(each)
    assert len(queue) == 50
    first = queue.pop()
    assert first is crowd[150]


def tree(*terms: QueueTerms) -> Queues:
    queues = Queues()
    for each in terms:
        queues.update(each)
    return queues


def test_what_is_had_in_a_queue_counts_in_those_above_it() -> None:
    fair_share = FairShare(
        tree(QueueTerms("org"), QueueTerms("a", "org"), QueueTerms("b", "org"), QueueTerms("x"))
    )
    fair_share.charge("a", 1.0)
    assert fair_share.start("x") < fair_share.start("b") < fair_share.start("a"), "org had more than x"


def test_queue_that_uses_less_than_it_is_guaranteed_comes_first() -> None:
    queues = tree(QueueTerms("a", guaranteed={"*": 1000}), QueueTerms("b", weight=100.0))
    fair_share = FairShare(queues)
    fair_share.charge("a", 1.0)
    assert fair_share.start("a") < fair_share.start("b")
    queues.take("p", "a", (("L4", 1000),))
    assert fair_share.start("a") > fair_share.start("b")
    before = fair_share.backs
    queues.let_go("p")
    assert (fair_share.start("a") < fair_share.start("b"), fair_share.backs) == (True, before + 1)


def test_queue_that_gets_another_one_above_it_keeps_what_it_owes() -> None:
    queues = tree(QueueTerms("a"), QueueTerms("b"))
    fair_share = FairShare(queues)
    for _ in range(3):
        fair_share.charge("a", 1.0)
    for each in (QueueTerms("org"), QueueTerms("a", "org"), QueueTerms("b", "org")):
        queues.update(each)
    fair_share.rearrange()
    assert fair_share.start("b") < fair_share.start("a")
    assert len(fair_share.start("a")) == 6


def test_many_flows_are_not_charged_at_every_event() -> None:
    fair_share = FairShare()
    for number in range(1000):
        fair_share.take(f"p{number}", f"u{number}", 1.0)
    fair_share.joins("v")
    fair_share.pass_time(0.1)
    assert turn(fair_share, "u1") == 0.0
    fair_share.pass_time(3.0)
    assert turn(fair_share, "u1") == pytest.approx(3.0)
