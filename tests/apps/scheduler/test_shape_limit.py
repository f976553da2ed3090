"""How many different shapes of one namespace wait in the engine at once."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.apps.scheduler.cycle.shape_limit import MOST_STALE, ShapeLimit, kind_of
from gpu_orchestrator.core.request import GangTerms, request
from gpu_orchestrator.engine.events import RequestAdded
from tests.support.examples import cases


def added(
    key: str, gpus: int, *, tenant: str = "team", priority: int = 0, since: float = 0.0
) -> RequestAdded:
    return RequestAdded(request(key, gpus, tenant=tenant, priority=priority), since)


def keys(coming: list[RequestAdded]) -> list[str]:
    return [each.request.key for each in coming]


def test_equal_shapes_count_once() -> None:
    limit = ShapeLimit(2)
    assert all(limit.enter(added(f"p{n}", 1)) for n in range(10))
    assert limit.enter(added("q", 2))
    assert not limit.enter(added("r", 3))


def test_namespaces_have_limits_of_their_own() -> None:
    limit = ShapeLimit(1)
    assert limit.enter(added("p", 1))
    assert not limit.enter(added("q", 2))
    assert limit.enter(added("r", 2, tenant="others"))


def test_members_of_a_gang_come_in_together_whatever_they_ask_for() -> None:
    """Or its workers would wait in the engine for a launcher that is held back until they leave."""
    limit = ShapeLimit(1)

    def member(key: str, gpus: int, gang: str) -> RequestAdded:
        return RequestAdded(request(key, gpus, tenant="team", gang=GangTerms(gang, 2)), 0.0)

    assert limit.enter(member("worker", 8, "g"))
    assert limit.enter(member("launcher", 1, "g"))
    assert not limit.enter(added("single", 2, since=9.0))
    assert not limit.enter(member("launcher-2", 1, "h"))
    assert not limit.enter(member("worker-2", 8, "h"))
    assert (limit.held_count, limit.leave("worker")) == (3, [])
    assert keys(limit.leave("launcher")) == ["launcher-2", "worker-2"]
    assert limit.held_count == 1
    assert limit.leave("launcher-2") == []
    assert keys(limit.leave("worker-2")) == ["single"]


def test_highest_priority_then_the_earliest_comes_in_with_its_equals() -> None:
    limit = ShapeLimit(1)
    limit.enter(added("p", 1))
    for held in (
        added("late", 2, since=3),
        added("early", 3, since=1),
        added("urgent", 4, since=9, priority=5),
        added("early too", 3, since=8),
    ):
        assert not limit.enter(held)
    assert keys(limit.leave("p")) == ["urgent"]
    assert keys(limit.leave("urgent")) == ["early", "early too"]
    assert limit.leave("early") == []
    assert keys(limit.leave("early too")) == ["late"]


def test_held_request_that_leaves_does_not_come_in() -> None:
    limit = ShapeLimit(1)
    limit.enter(added("p", 1))
    limit.enter(added("q", 2, since=1))
    limit.enter(added("r", 3, since=2))
    assert limit.leave("q") == []
    assert keys(limit.leave("p")) == ["r"]


def test_held_request_that_changes_often_is_queued_once_and_keeps_its_turn() -> None:
    limit = ShapeLimit(1)
    limit.enter(added("p", 1))
    limit.enter(added("early", 2, since=1))
    limit.enter(added("late", 3, since=3))
    for number in range(1000):
        limit.leave("q")
        limit.enter(added("q", 4 + number % 2, since=2))
    assert len(limit._namespaces["team"].queue) <= MOST_STALE + 2 * 3
    turns = [keys(limit.leave(each)) for each in ("p", "early", "q")]
    assert turns == [["early"], ["q"], ["late"]]


@cases(100)
@given(seed=st.integers(0, 2**32), most=st.integers(1, 4))
def test_no_request_is_lost_and_no_namespace_has_more_than_its_limit(seed: int, most: int) -> None:
    rng, limit = Random(seed), ShapeLimit(most)
    known: dict[str, RequestAdded] = {}
    inside: set[str] = set()
    for number in range(60):
        if known and rng.random() < 0.45:
            key = rng.choice(sorted(known))
            del known[key]
            inside.discard(key)
            inside.update(keys(limit.leave(key)))
        else:
            new = added(f"r{number}", rng.randint(1, 8), tenant=rng.choice("ab"), since=number)
            known[new.request.key] = new
            if limit.enter(new):
                inside.add(new.request.key)
        shapes = {(known[key].request.tenant, kind_of(known[key].request)) for key in inside}
        wanted = {(each.request.tenant, kind_of(each.request)) for each in known.values()}
        per_namespace, in_all = Counter(name for name, _ in shapes), Counter(name for name, _ in wanted)
        for namespace, count in in_all.items():
            assert per_namespace[namespace] == min(most, count), "a place is left unused, or used twice"
        for here in limit._namespaces.values():
            assert here.held_count == sum(map(len, here.held.values()))
        for key, each in known.items():
            assert (key in inside) == ((each.request.tenant, kind_of(each.request)) in shapes)
