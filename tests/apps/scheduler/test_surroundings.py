"""What other pods mean for a pod of ours: the coordinator obeys their rules, their volumes and their room."""

from itertools import count
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.adapters.breath import SLICE_S
from gpu_orchestrator.api.kubernetes import CsiNode, Namespace, Pod
from gpu_orchestrator.apps.scheduler.actions import Bound, Failed
from gpu_orchestrator.apps.scheduler.cycle import anti_affinity, pod_request
from gpu_orchestrator.apps.scheduler.cycle.anti_affinity import AntiAffinity
from gpu_orchestrator.core.pod_rules import Neighbour, PodSelector, PodTerm
from gpu_orchestrator.core.request import Expression
from tests.support.neighbour_oracle import REQUIRED
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import node, pod, volume, volume_claim

HOST = "kubernetes.io/hostname"


def host(name: str, gpus: int = 2) -> Any:
    return node(name, gpus, labels={HOST: name})


def term(key: str = HOST, **fields: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "x"}}, **fields}


def rule(kind: str, **fields: Any) -> dict[str, Any]:
    return {"affinity": {kind: {REQUIRED: [term(**fields)]}}}


def cpu(amount: str) -> dict[str, Any]:
    return {"containers": [{"name": "c", "resources": {"requests": {"cpu": amount}}}]}


def app(name: str, label: str = "x", **fields: Any) -> Pod:
    return pod(name, meta={"labels": {"app": label}}, **fields)


def places(world: World) -> dict[str, str]:
    return {job.pod.metadata.name: job.placement.node for job in world.executor.jobs}


def test_anti_affinity_of_a_bound_pod_keeps_matching_pods_away_until_it_ends() -> None:
    world = World(host("a"))
    world.pod(pod("lonely", node="a", schedulerName="other", **rule("podAntiAffinity")))
    world.pod(app("p", gpus=1))
    assert (
        world.executor.refused["p"] == "0/1 nodes fit: 1 does not satisfy other pods' anti-affinity to app=x"
    )
    world.pod(app("q", "y", gpus=1))
    assert places(world) == {"q": "a"}
    world.pod_gone("lonely")
    assert places(world) == {"q": "a", "p": "a"}


def test_pod_that_has_ended_keeps_no_pod_away_while_its_devices_are_not_free_yet() -> None:
    world = World(host("a"), uses_leases=False)
    world.pod(pod("lonely", gpus=1, **rule("podAntiAffinity")))
    (job,) = world.executor.jobs
    world.coordinator.done(Bound(job))
    world.pod(pod("lonely", node="a", gpus=1, allocated="a:0", **rule("podAntiAffinity")))
    world.pod(app("p", gpus=1))
    assert places(world) == {"lonely": "a"}
    world.pod_gone("lonely")
    assert places(world)["p"] == "a"
    assert world.free("a") == 0


def test_anti_affinity_of_a_pod_in_flight_counts() -> None:
    world = World(host("a"), host("b"))
    world.pod(pod("lonely", gpus=1, **rule("podAntiAffinity")))
    world.pod(app("p", gpus=1))
    world.pod(app("q", gpus=1))
    chosen = places(world)
    assert chosen["p"] == chosen["q"] != chosen["lonely"]


def test_waiting_pod_learns_of_anti_affinity_that_comes_later() -> None:
    """The pod waits for room. When there is room, a pod that keeps it away has come to the same zone."""
    world = World(node("a", 1, labels={"zone": "z"}), node("b", 0, labels={"zone": "z"}))
    world.pod(pod("full", node="a", schedulerName="other", **cpu("90")))
    world.pod(app("p", gpus=1, **cpu("10")))
    world.pod(pod("lonely", node="b", schedulerName="other", **rule("podAntiAffinity", key="zone")))
    world.pod_gone("full")
    assert places(world) == {}
    world.pod_gone("lonely")
    assert places(world) == {"p": "a"}


def test_pods_known_from_the_start_keep_each_other_away_in_any_order() -> None:
    world = World(host("a"), opened=False)
    world.pod(app("p", gpus=1))
    world.pod(pod("lonely", node="a", schedulerName="other", **rule("podAntiAffinity")))
    world.coordinator.open()
    assert "other pods' anti-affinity" in world.executor.refused["p"]


def test_affinity_waits_for_its_pod_and_then_follows_it() -> None:
    world = World(host("a"), host("b"))
    world.pod(pod("p", gpus=1, **rule("podAffinity")))
    assert world.executor.refused["p"] == "0/2 nodes fit: 2 do not satisfy the pod's affinity to app=x"
    world.pod(app("x", node="b", schedulerName="other"))
    assert places(world) == {"p": "b"}


def test_pod_that_gets_the_wanted_label_helps_a_waiting_one() -> None:
    world = World(host("a"), host("b"))
    world.pod(app("x", "y", node="b", schedulerName="other"))
    world.pod(pod("p", gpus=1, **rule("podAffinity")))
    assert places(world) == {}
    world.pod(app("x", "x", node="b", schedulerName="other"))
    assert places(world) == {"p": "b"}


def test_pod_that_is_being_deleted_counts_no_longer_for_spread() -> None:
    spread = {"topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1}
    evenly: Any = {"topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": {"app": "x"}}}]}
    world = World(host("a"), host("b", 0))
    world.pod(app("x", node="a", schedulerName="other"))
    world.pod(app("p", gpus=1, **evenly))
    assert world.executor.refused["p"] == (
        f"0/2 nodes fit: 1 has no GPU, 1 would break the pod's spread over {HOST} (maxSkew 1)"
    )
    leaving = {"labels": {"app": "x"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.pod(pod("x", node="a", schedulerName="other", meta=leaving))
    assert places(world) == {"p": "a"}


def many_terms(numbers: range) -> dict[str, Any]:
    unlike = [{"key": "app", "operator": "NotIn", "values": [str(each)]} for each in numbers]
    terms = [{"topologyKey": "rack", "labelSelector": {"matchExpressions": [each]}} for each in unlike]
    return {"affinity": {"podAntiAffinity": {REQUIRED: terms}}}


def far_terms(numbers: range, **fields: Any) -> dict[str, Any]:
    """Anti-affinity to almost all pods of all namespaces, over a label that no node has."""
    missing = [{"key": f"x{each}", "operator": "DoesNotExist"} for each in numbers]
    terms = [
        {"topologyKey": "rack", "namespaceSelector": {}, "labelSelector": {"matchExpressions": [each]}}
        for each in missing
    ]
    return {"affinity": {"podAntiAffinity": {REQUIRED: terms}}, **fields}


def foreign(name: str, namespace: str = "evil", **fields: Any) -> Pod:
    return pod(name, meta={"namespace": namespace, "uid": f"{namespace}-{name}"}, **fields)


def terms_against(world: World, name: str) -> int:
    rules = world.coordinator.engine.waiting(f"uid-{name}")
    assert rules is not None
    return len(rules.shape.rules.shunned_by) if rules.shape.rules else 0


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"gpus": 1, "schedulingGates": [{"name": "never"}]}, id="gated"),
        pytest.param({}, id="refused"),
        pytest.param({"node": "a", "schedulerName": "other"}, id="bound by another scheduler"),
        pytest.param({"gpus": 1}, id="waiting"),
    ],
)
def test_no_crowd_of_terms_stops_pods_of_other_namespaces(fields: dict[str, Any]) -> None:
    world = World(host("a", 0 if "gpus" in fields else 2))
    for number in range(12):
        world.pod(foreign(f"e{number}", **far_terms(range(8 * number, 8 * number + 8)), **fields))
    world.node(host("b"))
    world.pod(app("p", gpus=1))
    assert "p" in places(world)


def test_terms_of_a_gated_or_refused_pod_are_not_in_use() -> None:
    world = World(host("a"))
    gate: Any = {"schedulingGates": [{"name": "g"}]}
    world.pod(pod("gated", gpus=1, **rule("podAntiAffinity", key="rack"), **gate))
    world.pod(pod("refused", claim="none", **rule("podAntiAffinity", key="rack")))
    world.pod(app("p", gpus=3))
    assert terms_against(world, "p") == 0
    world.pod(pod("gated", gpus=3, **rule("podAntiAffinity", key="rack")))
    assert terms_against(world, "p") == 1


def test_one_namespace_keeps_pods_of_others_away_by_a_few_terms_only() -> None:
    world = World(host("a"))
    world.pod(app("p", gpus=3))
    for number in range(3):
        world.pod(foreign(f"e{number}", gpus=3, **far_terms(range(4 * number, 4 * number + 4))))
    assert terms_against(world, "p") == 8
    assert world.executor.refused["e2"] == (
        "the pods of namespace evil have more than 8 different anti-affinity terms that reach other "
        "namespaces; leave out namespaces and namespaceSelector, or use the same terms"
    )
    world.pod(foreign("e3", gpus=1, **far_terms(range(4))))
    assert "e3" in places(world)  # the same terms as e0
    world.pod(foreign("f", "fine", gpus=1, **far_terms(range(90, 94))))
    assert terms_against(world, "p") == 12


def test_pod_without_room_for_its_terms_is_queued_when_another_has_ended() -> None:
    world = World(host("a"))
    world.pod(foreign("e0", gpus=3, **far_terms(range(8))))
    for name in ("e1", "e2"):
        world.pod(foreign(name, gpus=1, **far_terms(range(8, 12))))
    world.pod(foreign("bound", node="a", schedulerName="other", **far_terms(range(20, 22))))
    world.pod(app("p", gpus=3))
    assert (places(world), terms_against(world, "p")) == ({}, 8)
    world.pod_gone("evil/e0")
    assert set(places(world)) == {"e1", "e2"}
    assert terms_against(world, "p") == 6


def test_bound_pods_with_the_same_terms_count_together_when_there_is_room() -> None:
    world = World(host("a"))
    bound: Any = {"node": "a", "schedulerName": "other"}
    world.pod(foreign("e0", gpus=3, **far_terms(range(8))))
    for name in ("e1", "e2"):
        world.pod(foreign(name, **far_terms(range(8, 16)), **bound))
    world.pod_gone("evil/e0")
    world.pod_gone("evil/e1")
    world.pod(app("p", gpus=3))
    assert terms_against(world, "p") == 8


def near_terms(*numbers: int) -> dict[str, Any]:
    """Different anti-affinity terms to all pods of the namespace, over a label that no node has."""
    missing = [{"key": f"x{each}", "operator": "DoesNotExist"} for each in numbers]
    terms = [{"topologyKey": "rack", "labelSelector": {"matchExpressions": [each]}} for each in missing]
    return {"affinity": {"podAntiAffinity": {REQUIRED: terms}}}


def near_crowd() -> list[Pod]:
    """Eight pods that do not fit, with eight terms each: as many as may be in use."""
    return [pod(f"n{each}", gpus=9, **near_terms(*range(8 * each, 8 * each + 8))) for each in range(8)]


def test_pod_whose_terms_are_too_many_for_its_namespace_waits_until_there_is_room() -> None:
    world = World(host("a", 8))
    for each in near_crowd():
        world.pod(each)
    world.pod(pod("late", gpus=1, **near_terms(64)))
    world.pod(pod("later", gpus=1, **near_terms(64, 65)))
    assert world.executor.refused["late"] == (
        "the pods of namespace default have more than 64 different anti-affinity terms on the same pods; "
        "use the same terms, or select fewer pods"
    )
    world.pod(pod("alike", gpus=1, **near_terms(*range(8))))
    world.pod(foreign("f", "fine", gpus=1, **near_terms(*range(70, 78))))
    assert set(places(world)) == {"alike", "f"}
    world.pod_gone("alike")
    world.pod_gone("n7")
    assert set(places(world)) == {"alike", "f", "late", "later"}


def test_terms_of_a_bound_pod_without_room_in_its_namespace_count_when_there_is_room() -> None:
    world = World(host("a"))
    for each in near_crowd():
        world.pod(each)
    world.pod(pod("bound", node="a", schedulerName="other", **near_terms(64, 65)))
    world.pod(app("p", gpus=3))
    assert terms_against(world, "p") == 64
    world.pod_gone("n7")
    assert terms_against(world, "p") == 56 + 2


@pytest.fixture
def few_terms(monkeypatch: pytest.MonkeyPatch) -> int:
    """Allow a few terms only: each costs every decision a little."""
    monkeypatch.setattr(anti_affinity, "MOST_TERMS", 8)
    return 8


def test_terms_by_which_all_pods_keep_each_other_away_are_limited(few_terms: int) -> None:
    world = World(host("a"))
    for number in range(12):
        world.pod(app(f"p{number}", gpus=3, **near_terms(number)))
    waiting = [number for number in range(12) if world.coordinator.engine.waiting(f"uid-p{number}")]
    assert waiting == list(range(few_terms))


@pytest.mark.parametrize(
    ("fields", "others"),
    [
        pytest.param({}, 0, id="those of its own namespace"),
        pytest.param({"namespaces": ["default", "other"]}, 40, id="those of the namespaces that it names"),
    ],
)
def test_new_term_is_compared_with_the_pods_that_it_can_match(
    fields: dict[str, Any], others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, compared, matches = World(host("a")), list[str](), PodSelector.matches
    for number in range(40):
        world.pod(foreign(f"f{number}", "other", gpus=3))
    world.pod(app("p", gpus=3))

    def observe(selector: PodSelector, seen: Neighbour) -> bool:
        compared.append(seen.namespace)
        return matches(selector, seen)

    monkeypatch.setattr(PodSelector, "matches", observe)
    world.pod(pod("lonely", gpus=3, **rule("podAntiAffinity", key="rack", **fields)))
    assert compared.count("other") == others
    assert terms_against(world, "p") == 1


def keeps_apart(labels: dict[str, str]) -> dict[str, Any]:
    terms = [{"topologyKey": HOST, "labelSelector": {"matchLabels": labels}}]
    return {"affinity": {"podAntiAffinity": {REQUIRED: terms}}}


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param([{"app": str(each)} for each in range(100)], id="a hundred Deployments"),
        pytest.param(
            [{"app": "train", "run": str(each)} for each in range(100)],
            id="a hundred runs of one application",
        ),
        pytest.param([{"app": "x"}] * 100, id="one StatefulSet"),
    ],
)
def test_pods_that_only_keep_their_own_kind_apart_are_never_too_many(labels: list[dict[str, str]]) -> None:
    world = World(host("a", 1))
    for number, own in enumerate(labels):
        world.pod(pod(f"p{number}", gpus=2, meta={"labels": own}, **keeps_apart(own)))
    assert not [why for why in world.executor.refused.values() if "different anti-affinity terms" in why]
    assert terms_against(world, "p99") == 1


def test_terms_over_many_labels_are_limited_by_the_pod_that_they_match(few_terms: int) -> None:
    labels = {f"l{each}": "x" for each in range(12)}
    world = World(host("a", 1))
    for number in range(12):
        world.pod(pod(f"p{number}", gpus=2, meta={"labels": labels}, **keeps_apart({f"l{number}": "x"})))
    told = [name for name, why in world.executor.refused.items() if "anti-affinity terms on the same" in why]
    assert told == [f"p{number}" for number in range(few_terms, 12)]


def test_terms_of_other_namespaces_take_no_room_from_the_own_one() -> None:
    world = World(host("a"))
    for number in range(10):
        terms = far_terms(range(8 * number, 8 * number + 8))
        for each in terms["affinity"]["podAntiAffinity"][REQUIRED]:
            del each["namespaceSelector"]
            each["namespaces"] = ["default"]
        world.pod(foreign("e", f"evil-{number}", node="a", schedulerName="other", **terms))
    world.pod(pod("p", gpus=1, **near_terms(*range(4), *range(100, 104))))
    assert places(world) == {"p": "a"}


def test_takeover_counts_the_terms_of_bound_pods_first() -> None:
    world = World(host("a"), opened=False)
    world.pod(app("p", gpus=3))
    world.pod(foreign("waits", gpus=1, **far_terms(range(8))))
    world.pod(foreign("bound", node="a", schedulerName="other", **far_terms(range(8, 16))))
    world.coordinator.open()
    assert "anti-affinity terms that reach other namespaces" in world.executor.refused["waits"]
    assert terms_against(world, "p") == 8


def test_takeover_checks_rules_one_pod_at_a_time() -> None:
    """The leader renews its lease between the steps."""
    world = World(host("a"), opened=False)
    for number in range(20):
        world.pod(app(f"p{number}", gpus=3, **rule("podAntiAffinity", namespaceSelector={})))
    assert sum(1 for _ in world.coordinator.check_rules()) == 3 * 20
    world.coordinator.open()
    assert terms_against(world, "p0") == 1


def test_of_too_many_terms_those_of_the_own_namespace_and_the_oldest_count() -> None:
    terms = AntiAffinity()
    far = [PodTerm(f"far-{each}", PodSelector(None)) for each in range(80)]
    for number, each in enumerate(far):
        terms.declare(f"f{number}", f"ns-{number}", (each,))
    own = [avoids(f"own-{each}") for each in range(10)]
    for number, each in enumerate(own):
        terms.declare(f"o{number}", "default", (each,))
    found = terms.against(Neighbour("default", {"app": "x"}))
    assert found == (*own, *far[:54])


def test_anti_affinity_beyond_the_limit_of_one_pod_does_not_count() -> None:
    world = World(host("a"))
    world.pod(pod("lonely", node="a", schedulerName="other", **many_terms(range(10_000))))
    world.pod(app("p", gpus=1))
    assert places(world) == {"p": "a"}


@pytest.mark.parametrize(("rules", "rows"), [pytest.param(0, 0, id="none"), pytest.param(8, 64, id="most")])
def test_checking_rules_counts_as_work_of_a_tick(rules: int, rows: int) -> None:
    world = World(*(host(f"n{each}") for each in range(32)))
    judged = world.coordinator.engine.cluster.standings
    for name in ("p", "q"):
        before = judged.rows_judged
        world.pod(pod(name, gpus=1, **many_terms(range(rules))))
    assert judged.rows_judged - before == rows  # the terms match the pods: they are checked both ways


@pytest.mark.parametrize(
    ("names", "obeyed"), [pytest.param(64, True, id="longest"), pytest.param(65, False, id="too long")]
)
def test_too_long_anti_affinity_of_others_does_not_count(names: int, obeyed: bool) -> None:
    world = World(host("a"))
    listed = ["default", *(f"ns-{each}" for each in range(1, names))]
    world.pod(foreign("e", node="a", schedulerName="other", **rule("podAntiAffinity", namespaces=listed)))
    world.pod(app("p", gpus=1))
    assert ("p" in places(world)) is not obeyed


def test_namespaces_are_selected_again_only_when_one_has_changed() -> None:
    world, red = World(), (Expression("team", "In", ("red",)),)
    stores = world.coordinator.stores
    world.namespace(namespace("a", 1, team="red"))
    first = stores.namespaces_with(red)
    assert stores.namespaces_with(red) is first == {"a"}
    world.namespace(namespace("b", 2, team="red"))
    assert stores.namespaces_with(red) == {"a", "b"}
    world.namespace(namespace("a", 3))
    assert stores.namespaces_with(red) == {"b"}
    world.namespaces.drop("b")
    assert stores.namespaces_with(red) == set()


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        pytest.param(Expression("team", "In", ("red", "blue")), {"a", "b"}, id="in"),
        pytest.param(Expression("team", "In", ()), set(), id="in none"),
        pytest.param(Expression("team", "NotIn", ("red", "green")), {"b", "c"}, id="not in"),
        pytest.param(Expression("team", "Exists"), {"a", "b"}, id="exists"),
        pytest.param(Expression("tier", "Exists"), set(), id="nobody has it"),
        pytest.param(Expression("team", "DoesNotExist"), {"c"}, id="does not exist"),
        pytest.param(Expression("team", "Gt", ("1",)), set(), id="not for labels of namespaces"),
    ],
)
def test_namespaces_are_selected_by_label(condition: Expression, names: set[str]) -> None:
    world = World()
    for each in (namespace("a", 1, team="red"), namespace("b", 2, team="blue"), namespace("c", 3)):
        world.namespace(each)
    find = world.coordinator.stores.namespaces_with
    assert find((condition,)) == names
    assert find((condition, Expression("team", "NotIn", ("blue",)))) == names - {"b"}
    assert find(()) == {"a", "b", "c"}


def namespace(name: str, version: int, **labels: str) -> Namespace:
    meta = {"name": name, "uid": name, "labels": labels, "resourceVersion": str(version)}
    return msgspec.convert({"metadata": meta}, Namespace)


def test_labels_of_namespaces_decide_which_pods_are_meant() -> None:
    red = {"namespaces": [], "namespaceSelector": {"matchLabels": {"team": "red"}}}
    world = World(host("a"))
    world.namespace(namespace("default", 1))
    world.pod(pod("lonely", gpus=1, **rule("podAntiAffinity", **red)))
    (job,) = world.executor.jobs
    world.namespace(namespace("default", 2, team="red"))  # while the pod is in flight
    world.coordinator.done(Bound(job))
    world.pod(pod("lonely", node="a", gpus=1, allocated="a:0", **rule("podAntiAffinity", **red)))
    world.pod(app("p", gpus=1))
    assert "other pods' anti-affinity" in world.executor.refused["p"]
    world.namespace(namespace("default", 3))
    assert places(world)["p"] == "a"


def slow_world() -> World:
    """A world without room, in which every few steps take as long as the event loop may be used."""
    looks = count()
    return World(host("a", 0), clock=lambda: next(looks) * SLICE_S / 20)


def waiting(world: World) -> int:
    return sum(world.coordinator.engine.waiting(f"uid-p{number}") is not None for number in range(40))


def test_change_of_a_namespace_is_taken_in_by_a_few_pods_per_tick() -> None:
    red = {"namespaceSelector": {"matchLabels": {"team": "red"}}}
    world = slow_world()
    for number in range(40):
        world.pod(app(f"p{number}", gpus=1, **rule("podAntiAffinity", **red)))
    world.namespace(namespace("default", 1, team="red"))
    assert 0 < waiting(world) < 40
    assert world.executor.tick_at is not None
    for _ in range(40):
        world.coordinator.tick()
    assert [terms_against(world, f"p{number}") for number in range(40)] == [1] * 40


def test_new_term_is_taken_in_by_a_few_pods_per_tick() -> None:
    world = slow_world()
    for number in range(40):
        world.pod(app(f"p{number}", gpus=1))
    world.pod(pod("lonely", gpus=1, **rule("podAntiAffinity")))
    assert 0 < waiting(world) < 40
    world.pod(app("p39", "y", gpus=1))
    world.pod_gone("p38")
    for _ in range(40):
        world.coordinator.tick()
    assert [terms_against(world, f"p{number}") for number in range(38)] == [1] * 38
    assert terms_against(world, "p39") == 0
    assert world.coordinator.engine.waiting("uid-p38") is None


def test_pod_that_was_checked_meanwhile_is_withdrawn_for_the_next_term() -> None:
    world = slow_world()
    for number in range(40):
        world.pod(app(f"p{number}", gpus=1))
    world.pod(pod("lonely", gpus=1, **rule("podAntiAffinity")))
    world.pod(app("p39", "y", gpus=1))
    assert terms_against(world, "p39") == 0
    world.pod(pod("other", gpus=1, **keeps_apart({"app": "y"})))
    assert world.coordinator.engine.waiting("uid-p39") is None
    for _ in range(40):
        world.coordinator.tick()
    assert terms_against(world, "p39") == 1


def test_namespace_that_changes_during_a_takeover_counts() -> None:
    red = {"namespaceSelector": {"matchLabels": {"team": "red"}}}
    world = World(host("a"), opened=False)
    world.namespace(namespace("default", 1))
    world.pod(pod("lonely", node="a", schedulerName="other", **rule("podAntiAffinity", **red)))
    world.pod(app("p", gpus=1))
    world.namespace(namespace("default", 2, team="red"))
    world.coordinator.open()
    assert "other pods' anti-affinity" in world.executor.refused["p"]


def test_pod_relabelled_while_it_is_bound_counts_with_its_new_labels() -> None:
    world = World(host("a"))
    world.pod(app("p", "old", gpus=1))
    (job,) = world.executor.jobs
    world.pod(app("p", "x", gpus=1))
    world.pod(app("p", "x", gpus=1, node="a", allocated="a:0"))  # the watch is ahead of the bind's answer
    world.coordinator.done(Bound(job))
    world.pod(pod("q", gpus=1, **rule("podAntiAffinity")))
    assert places(world) == {"p": "a"}
    assert "anti-affinity" in world.executor.refused["q"]


# --- volumes -----------------------------------------------------------------------------------------------


def mounts(*names: str) -> dict[str, Any]:
    return {"volumes": [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]}


ALONE = ("ReadWriteOncePod",)


def test_volume_for_one_pod_serves_one_pod_after_the_other() -> None:
    world = World(host("a"))
    world.volume(volume_claim("data", "v", modes=ALONE), volume("v"))
    world.pod(pod("p", node="a", schedulerName="other", **mounts("data")))
    world.pod(pod("q", gpus=1, **mounts("data")))
    assert world.executor.refused["q"] == (
        "PersistentVolumeClaim default/data is ReadWriteOncePod and serves another pod (p); "
        "it is free when that pod has ended"
    )
    world.pod_gone("p")
    assert places(world) == {"q": "a"}


def test_volume_for_one_pod_is_not_given_to_two_pods_in_flight() -> None:
    world = World(host("a"))
    world.volume(volume_claim("data", "v", modes=ALONE), volume("v"))
    world.pod(pod("full", node="a", schedulerName="other", **cpu("90")))
    for name in ("p", "q"):
        world.pod(pod(name, gpus=1, **mounts("data"), **cpu("10")))
    world.pod_gone("full")
    (job,), (other,) = world.executor.jobs, world.executor.abandoned
    assert (job.pod.metadata.name, other.pod.metadata.name) == ("p", "q")
    world.coordinator.done(Failed(other, "taken"))
    assert "serves another pod (p)" in world.executor.refused["q"]
    world.coordinator.done(Failed(job, "taken"))
    assert [job.pod.metadata.name for job in world.executor.jobs] == ["p", "q"]


def test_volume_for_many_pods_serves_them_together() -> None:
    world = World(host("a"))
    world.volume(volume_claim("data", "v", modes=("ReadWriteMany",)), volume("v"))
    for name in ("p", "q"):
        world.pod(pod(name, gpus=1, **mounts("data")))
    assert places(world) == {"p": "a", "q": "a"}


def test_pods_that_share_a_volume_are_judged_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    judged, judge = list[str](), pod_request.request_of

    def observe(pod: Pod, *rest: Any, **more: Any) -> Any:
        judged.append(pod.metadata.name)
        return judge(pod, *rest, **more)

    monkeypatch.setattr(pod_request, "request_of", observe)
    world = World(host("a", 1))
    claim = volume_claim("data", "v", modes=("ReadOnlyMany",))
    world.volume(claim, volume("v"))
    for name in "pqr":
        world.pod(pod(name, gpus=1, **mounts("data")))
    (job,) = world.executor.jobs
    world.coordinator.done(Failed(job, "taken"))
    world.pod(pod("p", gpus=1, node="a", **mounts("data")))
    world.pod(pod("other", node="a", schedulerName="other", **mounts("data")))
    world.pod_gone("other")
    annotated = {"annotations": {"seen": "now"}, "resourceVersion": "9"}
    world.volume(volume_claim("data", "v", modes=("ReadOnlyMany",), meta=annotated), volume("v"))
    assert [name for name in judged if name != "p"] == ["q", "r"]


def test_volume_that_is_bound_later_or_given_up_is_noticed() -> None:
    world = World(host("a"))
    world.volume(volume_claim("data", meta={"resourceVersion": "1"}), volume("v"))
    world.pod(pod("p", gpus=1, **mounts("data")))
    assert "is not bound" in world.executor.refused["p"]
    leaving = {"resourceVersion": "2", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.volume(volume_claim("data", meta=leaving), volume("v"))
    assert "is being deleted" in world.executor.refused["p"]
    world.volume(volume_claim("data", "v", meta={"resourceVersion": "3"}), volume("v"))
    assert places(world) == {"p": "a"}


def drivers(name: str, count: int | None, version: int = 1) -> CsiNode:
    meta = {"name": name, "uid": f"csi-{name}", "resourceVersion": str(version)}
    driver = {"name": "csi.example", "allocatable": {"count": count}}
    return msgspec.convert({"metadata": meta, "spec": {"drivers": [driver]}}, CsiNode)


def test_node_attaches_no_more_volumes_than_its_driver_can() -> None:
    world = World(host("a", 8))
    world.csi_node(drivers("a", 2))
    for name in ("v1", "v2", "v3"):
        world.volume(volume_claim(name, name), volume(name, driver="csi.example"))
    world.pod(pod("other", node="a", schedulerName="other", **mounts("v1")))
    world.pod(pod("same", gpus=1, **mounts("v1")))
    world.pod(pod("p", gpus=1, **mounts("v1", "v2")))
    assert set(places(world)) == {"same", "p"}  # v1 is attached once
    world.pod(pod("q", gpus=1, **mounts("v3")))
    assert world.executor.refused["q"] == "0/1 nodes fit: 1 has no room for another attached volume"
    world.csi_node(drivers("a", 3, version=2))
    assert "q" in places(world)


# --- room that another scheduler made ----------------------------------------------------------------------


def nominated(name: str, where: str, cpu: str = "90", **limits: str) -> Pod:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}, "limits": limits}}
    seen = pod(name, schedulerName="default-scheduler", containers=[container])
    return msgspec.structs.replace(
        seen, status=msgspec.structs.replace(seen.status, nominated_node_name=where)
    )


def wants_cpu(name: str) -> Pod:
    return pod(name, gpus=1, **cpu("10"))


def test_room_of_a_nominated_pod_is_kept_until_it_is_bound_elsewhere() -> None:
    world = World(host("a"))
    world.pod(nominated("n", "a"))
    world.pod(wants_cpu("p"))
    assert world.executor.refused["p"] == "0/1 nodes fit: 1 has too little cpu"
    world.pod(nominated("n", ""))
    assert places(world) == {"p": "a"}


def test_nominated_pod_that_is_bound_counts_once() -> None:
    world = World(host("a"))
    world.pod(nominated("n", "a", cpu="80"))
    world.pod(
        pod(
            "n",
            node="a",
            schedulerName="default-scheduler",
            containers=nominated("n", "", "80").spec.containers,
        )
    )
    world.pod(wants_cpu("p"))
    assert places(world) == {"p": "a"}


def test_node_to_which_a_plugin_pod_is_nominated_takes_no_claims() -> None:
    world = World(host("a"))
    world.pod(nominated("n", "a", **{"nvidia.com/gpu": "1"}))
    world.pod(pod("p", gpus=1))
    assert "device plugin" in world.executor.refused["p"]
    world.pod_gone("n")
    assert places(world) == {"p": "a"}


# --- the terms in use --------------------------------------------------------------------------------------


def avoids(key: str, *labels: Expression) -> PodTerm:
    return PodTerm(key, PodSelector(("default",), labels))


@pytest.mark.parametrize(
    ("condition", "matches"),
    [
        pytest.param(Expression("app", "In", ("x", "y")), True, id="in"),
        pytest.param(Expression("app", "In", ("y",)), False, id="not in"),
        pytest.param(Expression("app", "NotIn", ("y",)), True, id="without a label to look up"),
        pytest.param(Expression("tier", "DoesNotExist"), True, id="missing label"),
    ],
)
def test_terms_in_use_are_found_by_label(condition: Expression, matches: bool) -> None:
    terms, wanted = AntiAffinity(), avoids("zone", condition)
    seen = Neighbour("default", {"app": "x", "team": "red"})
    assert terms.declare("p", "default", (wanted,)) == [wanted]
    assert terms.declare("q", "default", (wanted,)) == []
    assert terms.against(seen) == ((wanted,) if matches else ())
    terms.withdraw("p", "default")
    assert terms.against(seen) == ((wanted,) if matches else ())
    terms.declare("q", "default", ())
    assert terms.against(seen) == ()
    assert not terms
