"""A worker as a node of the core."""

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.cluster.policies import SLOTS
from gpu_orchestrator.apps.cluster.translate import Memory, Reserved, Seen, node_of
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.limits import MOST_AMOUNT, MOST_MIB


def test_a_worker_that_tells_impossible_numbers_is_counted_with_the_largest_possible() -> None:
    device = session.Device(0, "u", "nvidia", "A", memory_mib=2**40)
    reading = session.Reading(0, used_mib=2**50, free_mib=-(2**50))
    hello = session.Hello("a", "i", (device,), max_concurrent=2**70)
    seen = node_of(Seen(hello, readings=(reading,)), Memory(), {0: Reserved()})
    assert (seen.devices[0].memory_mib, seen.devices[0].taken_mib) == (MOST_MIB, MOST_MIB)
    assert dict(seen.resources) == {SLOTS: MOST_AMOUNT}
    assert Cluster([seen]).free_gpus("a") == 1
