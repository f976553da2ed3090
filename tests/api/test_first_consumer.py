"""Where claims that wait for their first consumer can be bound, which volumes they get, and what follows."""

from typing import Any

import pytest

from gpu_orchestrator.api import first_consumer, volume_choice, volume_places
from gpu_orchestrator.api.kubernetes import Node, Pod
from gpu_orchestrator.api.volume_choice import VolumePlan
from gpu_orchestrator.api.volumes import Alternatives, NotReady
from gpu_orchestrator.apps.scheduler.informers import Stores
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import fits
from gpu_orchestrator.core.node import node as core_node
from gpu_orchestrator.core.request import Expression, Shape, Term
from tests.support.scheduler_harness import stores_of
from tests.support.scheduler_objects import node, pod, storage_class, volume, volume_claim

HOST = "kubernetes.io/hostname"
NODES = [node(name, labels={HOST: name, "zone": f"zone-{name}"}) for name in ("a", "b", "c")]
LOCAL = storage_class("local")
CLOUD = storage_class("cloud", provisioner="disk.example")
DISTANT = storage_class("distant", "zone-b", "zone-c", provisioner="disk.example")


def mounts(*claims: str) -> Pod:
    return pod("p", gpus=1, volumes=[{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims])


def reach(wanting: Pod, known: Stores) -> tuple[Alternatives, ...]:
    found = first_consumer.reach(wanting, known)
    assert not isinstance(found, NotReady)
    return found


def where(wanting: Pod, known: Stores) -> list[str] | str:
    """Return the nodes that the pod may go to, or why it waits."""
    found = first_consumer.reach(wanting, known)
    if isinstance(found, NotReady):
        return found.why
    reached = (each for each in NODES if all(volume_places.holds_on(each, one) for one in found))
    return [each.metadata.name for each in reached]


def small(name: str, **more: Any) -> Any:
    return volume_claim(name, of="local", storage="1Gi", modes=("ReadWriteOnce",), **more)


def disk(name: str, *nodes: str, **more: Any) -> Any:
    return volume(name, *nodes, **{"of": "local", "modes": ("ReadWriteOnce", "ReadOnlyMany"), **more})


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        pytest.param([disk("v", "b")], ["b"], id="volume of one node"),
        pytest.param([disk("v", "b"), disk("w", "c")], ["b", "c"], id="volumes of two nodes"),
        pytest.param([disk("v")], ["a", "b", "c"], id="volume of all nodes"),
        pytest.param([disk("v", "a", storage="1Mi"), disk("w", "c", storage="2Gi")], ["c"], id="too small"),
        pytest.param(
            [disk("v", "a", modes=("ReadOnlyMany",)), disk("w", "c")], ["c"], id="other access mode"
        ),
        pytest.param([disk("v", "a", volumeMode="Block"), disk("w", "c")], ["c"], id="other volume mode"),
        pytest.param(
            [disk("v", "a", volumeAttributesClassName="gold"), disk("w", "c")], ["c"], id="other attributes"
        ),
        pytest.param([disk("v", "a", phase="Released"), disk("w", "c")], ["c"], id="not available"),
        pytest.param([disk("v", "a", of="other"), disk("w", "c")], ["c"], id="other class"),
        pytest.param([disk("v", "a", storage="?"), disk("w", "c")], ["c"], id="odd size"),
        pytest.param(
            [disk("v", "a", meta={"deletionTimestamp": "2026-01-01T00:00:00Z"}), disk("w", "c")],
            ["c"],
            id="being deleted",
        ),
        pytest.param(
            [disk("v", "a", claimRef={"namespace": "default", "name": "x"}), disk("w", "c")],
            ["c"],
            id="for another claim",
        ),
        pytest.param(
            [disk("v", "a", claimRef={"namespace": "default", "name": "data"}), disk("w", "c")],
            ["a"],
            id="for this claim",
        ),
        pytest.param(
            [disk("v", "a", claimRef={"namespace": "default", "name": "data", "uid": "old"}), disk("w", "c")],
            ["c"],
            id="for an earlier claim of this name",
        ),
    ],
)
def test_claim_goes_where_a_free_volume_suits_it(objects: list[Any], expected: list[str]) -> None:
    assert where(mounts("data"), stores_of(LOCAL, small("data"), *objects)) == expected


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        pytest.param({"matchLabels": {"disk": "fast"}}, ["a"], id="label"),
        pytest.param({"matchExpressions": [{"key": "disk", "operator": "NotIn", "values": ["fast"]}]}, ["b"]),
        pytest.param({}, ["a", "b"], id="empty"),
    ],
)
def test_selector_of_a_claim_chooses_among_volumes(selector: dict[str, Any], expected: list[str]) -> None:
    disks = disk("v", "a", labels={"disk": "fast"}), disk("w", "b", labels={"disk": "slow"})
    assert where(mounts("data"), stores_of(LOCAL, small("data", selector=selector), *disks)) == expected


@pytest.mark.parametrize(
    ("of", "annotations", "expected"),
    [
        pytest.param("cloud", {}, ["a", "b", "c"], id="anywhere"),
        pytest.param("distant", {}, ["b", "c"], id="allowed topologies"),
        pytest.param("cloud", {"volume.kubernetes.io/selected-node": "b"}, ["b"], id="selected node"),
        pytest.param("distant", {"volume.kubernetes.io/selected-node": "b"}, ["b"], id="both agree"),
        pytest.param(
            "distant",
            {"volume.kubernetes.io/selected-node": "a"},
            [],
            id="selected node where the class creates none",
        ),
        pytest.param(
            "", {"volume.beta.kubernetes.io/storage-class": "distant"}, ["b", "c"], id="old annotation"
        ),
    ],
)
def test_claim_goes_where_its_volume_can_be_created(
    of: str, annotations: dict[str, str], expected: list[str]
) -> None:
    wanted = volume_claim("data", of=of, storage="1Gi", meta={"annotations": annotations})
    assert where(mounts("data"), stores_of(CLOUD, DISTANT, wanted)) == expected


def test_claims_of_one_pod_meet_on_one_node() -> None:
    bound = volume_claim("old", "v0"), volume("v0", "b", "c")
    fast = volume_claim("fast", of="distant", storage="1Gi")
    disks = disk("v1", "a"), disk("v2", "b")
    known = stores_of(LOCAL, DISTANT, *bound, fast, small("data"), *disks)
    assert where(mounts("old", "fast", "data"), known) == ["b"]


def test_two_claims_of_a_pod_need_two_volumes() -> None:
    disks = [disk("v1", "a"), disk("v2", "b"), disk("v3", "b", storage="5Gi")]
    known = stores_of(LOCAL, small("x"), small("y"), *disks)
    assert where(mounts("x", "y"), known) == ["b"]
    assert where(mounts("x"), known) == ["a", "b"]
    refused = where(mounts("x", "y"), stores_of(LOCAL, small("x"), small("y"), *disks[:2]))
    assert refused == (
        "no node can reach free PersistentVolumes for all of default/x, default/y; create volumes for them"
    )


def test_volume_of_all_nodes_and_volume_of_one_meet() -> None:
    known = stores_of(LOCAL, small("x"), small("y"), disk("v1"), disk("v2", "c"))
    assert where(mounts("x", "y"), known) == ["c"]


def test_volumes_of_single_nodes_and_others_mix() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["zone-b", "zone-c"]}
    terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}
    known = stores_of(LOCAL, small("x"), small("y"), disk("v1", nodeAffinity=terms), disk("v2", "a", "b"))
    assert where(mounts("x", "y"), known) == ["b"]
    assert where(mounts("x"), known) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("objects", "why"),
    [
        pytest.param([], "default/data does not exist; create it", id="missing"),
        pytest.param([small("data")], "StorageClass local does not exist; create it", id="class missing"),
        pytest.param([volume_claim("data")], "has no StorageClass", id="no class"),
        pytest.param(
            [storage_class("local", waits=False), small("data")],
            "its events say what it lacks",
            id="immediate",
        ),
        pytest.param([LOCAL, small("data")], "has 1Gi and ReadWriteOnce, as", id="no volume"),
        pytest.param(
            [LOCAL, small("data", meta={"annotations": {"volume.kubernetes.io/selected-node": "a"}})],
            "the class creates none",
            id="selected node and no provisioner",
        ),
        pytest.param(
            [LOCAL, volume_claim("data", "v", of="local", phase="Pending")],
            "not bound to PersistentVolume v, which it names",
            id="names a volume",
        ),
        pytest.param(
            [LOCAL, volume_claim("data", of="local", storage="9" * 99)], "cannot be read", id="odd request"
        ),
        pytest.param(
            [LOCAL, small("data", selector={"matchLabels": {f"l{n}": "" for n in range(17)}})],
            "more than 16 conditions",
            id="long selector",
        ),
        pytest.param([LOCAL, small("data", phase="Lost")], "has lost its volume", id="lost"),
    ],
)
def test_claim_that_cannot_be_bound_says_what_to_do(objects: list[Any], why: str) -> None:
    answer = where(mounts("data"), stores_of(*objects))
    assert why in answer


def test_claim_that_is_being_bound_for_another_pod_waits() -> None:
    known = stores_of(CLOUD, volume_claim("data", of="cloud", storage="1Gi"))
    known.promised.claims["default/data"] = "uid-q"
    assert "being bound for another pod" in where(mounts("data"), known)
    known.promised.claims["default/data"] = "uid-p"
    assert where(mounts("data"), known) == ["a", "b", "c"]


def test_pod_with_very_many_waiting_claims_is_refused() -> None:
    names = [f"c{n}" for n in range(33)]
    known = stores_of(CLOUD, *(volume_claim(name, of="cloud", storage="1Gi") for name in names))
    assert where(mounts(*names[:32]), known) == ["a", "b", "c"]
    assert "takes up to 32" in where(mounts(*names), known)


# --- ephemeral volumes -------------------------------------------------------------------------------------

EPHEMERAL = pod("p", gpus=1, volumes=[{"name": "tmp", "ephemeral": {}}])


def owned(uid: str) -> Any:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": True}
    return volume_claim("p-tmp", of="cloud", storage="1Gi", meta={"ownerReferences": [owner]})


def test_claim_of_an_ephemeral_volume_is_the_pods_own() -> None:
    assert where(EPHEMERAL, stores_of(CLOUD, owned("uid-p"))) == ["a", "b", "c"]
    assert "Kubernetes creates it" in where(EPHEMERAL, stores_of(CLOUD))
    assert "does not belong to the pod" in where(EPHEMERAL, stores_of(CLOUD, owned("uid-q")))


# --- bounds ------------------------------------------------------------------------------------------------


def test_places_that_differ_in_the_node_alone_are_one_alternative() -> None:
    disks = [disk(f"v{n}", f"node-{n}") for n in range(3000)]
    (alternatives,) = reach(mounts("data"), stores_of(LOCAL, small("data"), *disks))
    (term,) = alternatives
    assert len(term.labels[0].values) == 3000


def test_many_different_places_are_cut() -> None:
    def reached_by(number: int) -> dict[str, Any]:
        conditions = [{"key": key, "operator": "In", "values": [str(number)]} for key in ("x", "y")]
        return {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": conditions}]}}}

    disks = [disk(f"v{n:04}", **reached_by(n)) for n in range(1000)]
    (alternatives,) = reach(mounts("data"), stores_of(LOCAL, small("data"), *disks))
    assert len(alternatives) == volume_places.MOST_TERMS


@pytest.mark.parametrize("operator", ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])
@pytest.mark.parametrize("value", [None, "2", "5", "x"])
def test_conditions_mean_what_they_mean_to_the_engine(operator: Any, value: str | None) -> None:
    labels = {} if value is None else {"size": value}
    term = Term((Expression("size", operator, ("3", "5") if operator in ("In", "NotIn") else ("3",)),))
    cluster = Cluster([core_node("n", 1, labels=labels, resources={"pods": 1})])
    expected = fits(Shape(gpus=1, affinity=(term,)), cluster, "n")
    assert volume_places.holds_on(node("n", labels=labels), (term,)) is expected


# --- the choice for a node ---------------------------------------------------------------------------------


def chosen(wanting: Pod, on: Node, known: Stores) -> dict[str, str] | str | None:
    """Return the volume of each claim, `new` for one to be created; or why there is none."""
    plan = volume_choice.choose(wanting, on, known)
    if not isinstance(plan, VolumePlan):
        return plan.why if plan else None
    used = {each.claim.metadata.name: each.volume.metadata.name for each in plan.uses}
    return used | {claim.metadata.name: "new" for claim in plan.provisions}


A, B, C = NODES


def test_smallest_volume_that_suits_is_chosen() -> None:
    disks = disk("v1", "a", storage="3Gi"), disk("v2", "a", storage="2Gi"), disk("v3", "b")
    assert chosen(mounts("data"), A, stores_of(LOCAL, small("data"), *disks)) == {"data": "v2"}


def test_each_claim_gets_a_volume_of_its_own() -> None:
    """The first takes the volume that both could have; it moves, because the second can have no other."""
    both, one = disk("v1", "a", modes=("ReadWriteOnce", "ReadWriteMany")), disk("v2", "a", storage="9Gi")
    first = small("x")
    second = volume_claim("y", of="local", storage="1Gi", modes=("ReadWriteMany",))
    known = stores_of(LOCAL, first, second, both, one)
    assert chosen(mounts("x", "y"), A, known) == {"x": "v2", "y": "v1"}


def test_existing_volume_goes_before_a_new_one() -> None:
    wanted = [volume_claim(name, of="cloud", storage="1Gi") for name in ("x", "y")]
    known = stores_of(CLOUD, *wanted, volume("v", "a", of="cloud"))
    assert chosen(mounts("x", "y"), A, known) == {"x": "v", "y": "new"}
    assert chosen(mounts("x", "y"), B, known) == {"x": "new", "y": "new"}


def test_promised_volume_is_for_its_claim_alone() -> None:
    known = stores_of(LOCAL, small("x"), small("y"), disk("v", "a"))
    known.promised.volumes["v"] = "default/x"
    assert chosen(mounts("x"), A, known) == {"x": "v"}
    assert chosen(mounts("y"), A, known) == "node a has no volume for default/y any longer"
    assert "creates none" in where(mounts("y"), known)


def test_volume_that_is_being_created_is_waited_for() -> None:
    """A scheduler was killed after it had asked for the volume: its creator has made it, and it names the
    claim."""
    wanted = volume_claim(
        "data", of="cloud", storage="1Gi", meta={"annotations": {"volume.kubernetes.io/selected-node": "a"}}
    )
    made = volume("v", "a", of="cloud", claimRef={"namespace": "default", "name": "data", "uid": "uid-data"})
    assert chosen(mounts("data"), A, stores_of(CLOUD, wanted, made)) == {"data": "new"}


def test_bound_claims_need_no_choice() -> None:
    known = stores_of(volume_claim("data", "v"), volume("v", "a"))
    assert chosen(mounts("data"), A, known) is None


# --- progress ----------------------------------------------------------------------------------------------

WANTED = volume_claim("new", of="cloud", storage="1Gi")
STATIC = small("data")
PLAN = VolumePlan("a", (volume_choice.Use(STATIC, disk("v", "a")),), (WANTED,))
TAKEN = disk("v", "a", claimRef={"namespace": "default", "name": "data", "uid": "uid-data"})
ASKED = volume_claim("new", of="cloud", meta={"annotations": {"volume.kubernetes.io/selected-node": "a"}})
HAVE = [volume_claim("data", "v"), disk("v", "a"), volume_claim("new", "w"), volume("w", "a")]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        pytest.param([STATIC, TAKEN, ASKED], "waiting", id="nothing yet"),
        pytest.param([*HAVE[:2], ASKED], "waiting", id="one of two"),
        pytest.param(HAVE, "bound", id="all"),
        pytest.param(HAVE[:3], "waiting", id="volume not shown yet"),
        pytest.param([*HAVE[:3], volume("w", "b")], "which node a cannot reach", id="volume elsewhere"),
        pytest.param([*HAVE[:2], WANTED], "could not be created for node a", id="given up"),
        pytest.param(HAVE[:2], "default/new was deleted", id="claim deleted"),
        pytest.param([STATIC, disk("v", "a"), ASKED], "was taken away", id="volume taken away"),
        pytest.param([STATIC, ASKED], "was taken away", id="volume deleted"),
        pytest.param(
            [*HAVE[:2], volume_claim("new", meta={"uid": "another"})], "was deleted", id="claim made again"
        ),
    ],
)
def test_progress_of_a_plan(shown: list[Any], expected: str) -> None:
    found = volume_choice.progress(PLAN, A, stores_of(*shown))
    assert expected in (found.why if isinstance(found, NotReady) else found)


def test_plan_for_a_node_that_is_gone_fails() -> None:
    assert volume_choice.progress(PLAN, None, stores_of(*HAVE)) == NotReady("node a is gone")
