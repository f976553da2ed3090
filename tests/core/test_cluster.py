"""The cluster as a value: nothing is taken twice, everything comes back, and a copy is independent."""

import random
import re
from typing import Any

import pytest

from gpu_orchestrator.core import standing_cache
from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import decide
from gpu_orchestrator.core.device import Device
from gpu_orchestrator.core.errors import InvalidRequest, Oversold, Unknown
from gpu_orchestrator.core.inventory import MOST_LABELS
from gpu_orchestrator.core.journal import KEEP
from gpu_orchestrator.core.node import Node
from gpu_orchestrator.core.request import Fabric, HostPort
from gpu_orchestrator.core.standing import MOST_SEEN, current
from gpu_orchestrator.policies.registry import Registry
from tests.support.builders import cluster, node, placed, request, shared, takes, whole

POLICY = Registry().policy()


def ask(to: Cluster, gpus: int = 1) -> Placement | Refusal:
    return decide(request("pod", gpus), to, POLICY, random.Random(1))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        pytest.param(whole("q", "a", 0), "q was given device 0 of a, which is taken", id="whole on whole"),
        pytest.param(
            shared("q", "a", 0, milli=1), "q was given device 0 of a, which is taken", id="share on whole"
        ),
        pytest.param(whole("q", "a", 1), "q was given device 1 of a, which is taken", id="whole on share"),
        pytest.param(
            shared("q", "a", 1, milli=600),
            "q was given device 1 of a, which is taken",
            id="too large a share",
        ),
        pytest.param(
            shared("q", "a", 1, memory_mib=50),
            "q was given device 1 of a, which is taken",
            id="too much memory",
        ),
        pytest.param(
            whole("q", "a", 7), "q was given device 7 of a, which has no such device", id="no device"
        ),
        pytest.param(takes("q", "a", {"cpu": 5}), "q takes 5 cpu of a, which has 4 free", id="too much cpu"),
        pytest.param(takes("q", "a", {"odd": 1}), "q takes 1 odd of a, which has 0 free", id="unheard of"),
        pytest.param(whole("w", "a", 2), "w already holds something on a; release it first", id="same key"),
    ],
)
def test_nothing_is_given_twice(second: Placement, message: str) -> None:
    held = [whole("w", "a", 0), shared("s", "a", 1, milli=500, memory_mib=40)]
    busy = cluster(node("a", 3, memory_mib=80, resources={"cpu": 4}), held=held)
    with pytest.raises(Oversold, match=message):
        busy.place(second)
    assert set(busy.held_on("a")) == {"w", "s"}


def test_released_capacity_can_be_placed_again() -> None:
    one = cluster(node("a", 1), held=[whole("p", "a", 0)])
    assert isinstance(ask(one), Refusal)
    assert one.release(whole("p", "a", 0)) == whole("p", "a", 0)
    assert placed(ask(one)) == ("a", (0,))
    with pytest.raises(Unknown, match="p holds nothing on a"):
        one.release(whole("p", "a", 0))
    with pytest.raises(Unknown, match="no node b among the 1 of this cluster"):
        one.place(whole("p", "b", 0))


def test_node_update_keeps_placements() -> None:
    seen = cluster(node("a", 2), held=[whole("p", "a", 0)])
    assert not seen.set_node(node("a", 2)), "nothing changed"
    assert seen.set_node(node("a", 3))
    assert seen.free_gpus("a") == 2
    assert placed(ask(seen, 2)) == ("a", (1, 2))


def test_device_that_disappears_returns_with_its_holder() -> None:
    seen = cluster(node("a", 2), held=[whole("p", "a", 1)])
    seen.set_node(node("a", 1))
    assert seen.free_gpus("a") == 1
    seen.set_node(node("a", 2))
    assert seen.free_gpus("a") == 1
    assert placed(ask(seen)) == ("a", (0,))


def test_ids_may_have_gaps() -> None:
    gaps = cluster(node("a", [Device(3), Device(7)]), held=[whole("p", "a", 3)])
    assert placed(ask(gaps)) == ("a", (7,))


def test_removed_node_offers_nothing_and_its_row_is_reused() -> None:
    moving = cluster(node("a", 2), node("b", 1), held=[whole("p", "a", 0)])
    moving.remove_node("a")
    assert len(moving) == 1
    assert "a" not in moving
    assert placed(ask(moving)) == ("b", (0,))
    moving.set_node(node("c", 4))
    assert placed(ask(moving, 4)) == ("c", (0, 1, 2, 3))
    assert moving.held_on("c") == {}


def test_copy_is_independent() -> None:
    original = cluster(node("a", 2), node("b", 1))
    assert placed(ask(original, 2)) == ("a", (0, 1))
    copy = original.copy()
    copy.place(whole("p", "a", 0))
    copy.set_node(node("z", 8))
    copy.remove_node("b")
    assert placed(ask(copy, 2)) == ("z", (0, 1))
    assert placed(ask(original, 2)) == ("a", (0, 1))
    assert [each.name for each in original] == ["a", "b"]
    original.place(whole("q", "a", 1))
    assert copy.held_on("a") == {"p": whole("p", "a", 0)}


def test_existing_placement_is_counted_even_if_it_oversells() -> None:
    """Two pods of a device plugin, three GPUs, two devices: nothing is free until both are gone."""
    real = cluster(node("a", 2))
    first, second = Placement("p", "a", unnamed=2), Placement("q", "a", unnamed=1)
    real.account(first)
    real.account(second)
    real.account(second)
    assert real.free_gpus("a") == 0
    real.release(first)
    assert real.free_gpus("a") == 1
    real.release(second)
    assert real.free_gpus("a") == 2


def test_unnamed_gpus_are_counted_when_the_node_reports_devices_later() -> None:
    late = cluster(node("a", 0))
    late.account(Placement("p", "a", unnamed=2))
    late.account(whole("q", "a", 0))
    late.set_node(node("a", 4))
    assert late.free_gpus("a") == 1
    late.release(Placement("p", "a", unnamed=2))
    assert late.free_gpus("a") == 3


def test_answers_stay_right_after_the_journal_overflows() -> None:
    many = cluster(node("a", 1), node("b", 1))
    assert placed(ask(many))[0] == "a"
    for _ in range(KEEP + 1):
        many.place(whole("p", "b", 0))
        many.release(whole("p", "b", 0))
    many.place(whole("q", "a", 0))
    assert placed(ask(many))[0] == "b"


def test_known_node_state_is_reused_unless_the_node_changed() -> None:
    two = cluster(node("a", 2), node("b", 1))
    for _ in range(3):
        assert placed(ask(two, gpus=2))[0] == "a"
        two.place(whole("p", "a", 0))
        assert isinstance(ask(two, gpus=2), Refusal)
        two.release(whole("p", "a", 0))
    two.set_node(node("a", 2, ready=False))
    assert isinstance(ask(two, gpus=2), Refusal)


def test_port_holder_matters_even_if_free_amounts_are_equal() -> None:
    one, port = cluster(node("a", 1)), (HostPort(80),)
    wanted = request("pod", gpus=0, host_ports=port)
    for _ in range(2):
        for held, fits in ((Placement("p", "a", host_ports=port), False), (Placement("q", "a"), True)):
            one.place(held)
            assert isinstance(decide(wanted, one, POLICY, random.Random(1)), Placement) is fits
            one.release(held)
            assert isinstance(decide(wanted, one, POLICY, random.Random(1)), Placement)


def test_cached_states_are_bounded() -> None:
    one = cluster(node("a", 1, resources={"cpu": 1_000_000}))
    for number in range(2 * MOST_SEEN):
        one.place(Placement(f"p{number}", "a", resources=(("cpu", 1),)))
        assert placed(ask(one))[0] == "a"
    standing = current(request("pod").shape, one, POLICY)
    assert 0 < len(standing.seen) <= MOST_SEEN


def test_cached_shapes_are_bounded() -> None:
    one = cluster(node("a", 1, resources={"cpu": 1_000_000}))
    for cpu in range(1, 3 * standing_cache.KEEP):
        decide(request("pod", resources={"cpu": cpu}), one, POLICY, random.Random(1))
    assert len(one.standings) == standing_cache.KEEP


def test_cached_labels_are_bounded_and_answers_stay_right() -> None:
    labels = {f"key-{i}": "1" for i in range(0, MOST_LABELS + 50, 2)}
    many = cluster(node("a", 1, labels=labels))
    for i in [*range(MOST_LABELS + 50), *range(MOST_LABELS + 50)]:
        answer = decide(request("p", labels={f"key-{i}": "1"}), many, POLICY, random.Random(1))
        assert isinstance(answer, Placement) is (i % 2 == 0)
    many.set_node(node("a", 1, labels={**labels, "key-1": "1"}))
    assert isinstance(decide(request("p", labels={"key-1": "1"}), many, POLICY, random.Random(1)), Placement)
    assert len(many.inventory.labels) <= MOST_LABELS


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: request("p", -1), "-1 GPUs were asked for; ask for 0 or more", id="negative"),
        pytest.param(lambda: request("p", share=1001), "a share is 1 to 1000", id="share above a whole"),
        pytest.param(lambda: request("p", shared=True), "without share or memory", id="share of nothing"),
        pytest.param(lambda: request("p", memory_mib=-1), "cannot be negative", id="negative memory"),
        pytest.param(
            lambda: request("p", resources={"cpu": -1}), "-1 of cpu was asked for", id="negative cpu"
        ),
        pytest.param(
            lambda: node("a", [Device(1), Device(1)]), "two devices have the same id", id="twin ids"
        ),
        pytest.param(lambda: Node("a", (Device(0),)), "its topology speaks of", id="topology of another"),
    ],
)
def test_contradictory_request_is_refused_with_a_reason(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(InvalidRequest, match=message):
        make()


def test_requests_for_ever_new_resources_do_not_grow_memory() -> None:
    small = cluster(*(node(f"n{i}", 1, resources={"cpu": 4}) for i in range(4)))
    kinds = len(small.inventory.kinds_of)
    for number in range(200):
        wish = request("pod", resources={f"vendor.example/{number}": 1})
        answer = decide(wish, small, POLICY, random.Random(1))
        assert isinstance(answer, Refusal)
        assert answer.message == f"0/4 nodes fit: 4 have no vendor.example/{number}"
        assert answer.never
        with pytest.raises(Oversold):
            small.place(takes("pod", "n0", {f"vendor.example/{number}": 1}))
    small.set_node(node("n0", 2, resources={"cpu": 4}))
    assert len(small.inventory.kinds_of) == kinds
    assert small.usage.kinds == small.inventory.kinds == kinds


def test_resource_offered_later_is_found_by_an_earlier_request() -> None:
    small = cluster(node("a", 1))
    wish = request("pod", resources={"nic": 1})
    assert isinstance(decide(wish, small, POLICY, random.Random(1)), Refusal)
    twin = small.copy()
    twin.set_node(node("b", 1, resources={"nic": 1}))
    assert placed(decide(wish, twin, POLICY, random.Random(1))) == ("b", (0,))
    assert isinstance(answer := decide(wish, small, POLICY, random.Random(1)), Refusal)
    assert answer.message == "0/1 nodes fit: 1 has no nic"
    with pytest.raises(Oversold, match="takes 1 nic of a, which has 0 free"):
        small.place(takes("pod", "a", {"nic": 1}))


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        pytest.param({"resources": {"memory": 2**53}}, "9007199254740992 or more of memory", id="amount"),
        pytest.param({"resources": {"memory": 10**20}}, "which no node can have; ask for less", id="larger"),
        pytest.param({"gpus": 2**31}, "2147483648 GPUs with 0 MiB", id="gpus"),
        pytest.param({"memory_mib": 2**31}, "1 GPUs with 2147483648 MiB", id="memory"),
        pytest.param({"min_bandwidth_gbps": 2**31}, "each of these numbers ends at 2147483647", id="GB/s"),
        pytest.param({"fabric": Fabric(min_ports=2**31)}, "2147483648 ports were asked for", id="ports"),
    ],
)
def test_too_large_request_is_refused_with_a_reason(wish: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        request("pod", **wish)


@pytest.mark.parametrize(
    ("gpus", "facts", "message"),
    [
        pytest.param([Device(0, memory_mib=2**24 + 1)], {}, "16777217 MiB on device 0", id="memory"),
        pytest.param(
            [Device(0, memory_mib=-1)], {}, "a has -1 MiB on device 0; it can be 0 to", id="negative"
        ),
        pytest.param([Device(0, taken_mib=2**31)], {}, "2147483648 MiB taken on device 0", id="taken"),
        pytest.param(1, {"resources": {"cpu": 2**63}}, "9223372036854775808 cpu", id="amount"),
        pytest.param(1, {"rdma_ports": 2**31}, "2147483648 RDMA ports", id="ports"),
        pytest.param(2, {"links": {(0, 1): 10**400}}, "GB/s; it can be 0 to 2147483647", id="bandwidth"),
        pytest.param(1025, {}, "a has 1025 devices; it can be 0 to 1024", id="devices"),
    ],
)
def test_too_large_node_is_refused_before_anything_changes(
    gpus: Any, facts: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        node("a", gpus, **facts)


def test_placements_with_invented_resources_do_not_grow_memory() -> None:
    small = cluster(*(node(f"n{i}", 1, resources={"cpu": 4}) for i in range(4)))
    before = small.usage.free.nbytes
    for number in range(200):
        small.account(Placement(f"p{number}", "n0", resources=((f"vendor.example/{number}", 1),)))
    assert small.usage.free.nbytes == before


def test_resource_that_a_node_offers_later_counts_what_is_held_of_it() -> None:
    """Held on two nodes before any node offers it, and released after one does."""
    both = cluster(node("a", 1, resources={"cpu": 4}), node("b", 1, resources={"cpu": 4}))
    for name in ("a", "b"):
        both.account(Placement(f"on-{name}", name, resources=(("vendor.example/card", 2),)))
    both.set_node(node("a", 1, resources={"cpu": 4, "vendor.example/card": 3}))
    wish = Placement("p", "a", resources=(("vendor.example/card", 2),))
    with pytest.raises(Oversold):
        both.place(wish)
    both.release(Placement("on-a", "a"))
    both.release(Placement("on-b", "b"))
    both.place(wish)
    with pytest.raises(Oversold):
        both.place(Placement("q", "b", resources=(("vendor.example/card", 1),)))


@pytest.mark.parametrize(
    ("vendor", "model", "largest"),
    [
        pytest.param("", "", 192, id="of all"),
        pytest.param("nvidia", "", 80, id="of a vendor"),
        pytest.param("", "A100", 40, id="of a model"),
        pytest.param("amd", "A100", 0, id="of a model that the vendor does not make"),
        pytest.param("", "never seen", 0, id="of an unknown model"),
    ],
)
def test_largest_device_of_a_kind(vendor: str, model: str, largest: int) -> None:
    small, large = (
        Device(0, vendor="nvidia", model="A100", memory_mib=40),
        Device(1, vendor="nvidia", model="H100", memory_mib=80, healthy=False),
    )
    other = Device(0, vendor="amd", model="MI300X", memory_mib=192)
    made = Cluster(
        [node("a", [small, large]), node("b", [other]), node("c", memory_mib=999), node("gone", 1)]
    )
    made.remove_node("gone")
    assert made.largest_mib(vendor, model) == largest
    assert Cluster().largest_mib(vendor, model) == 0
