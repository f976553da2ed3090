"""Queues that are found by labels are those that a plain look at all of them finds."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.api import queue_terms
from gpu_orchestrator.api.gpuqueue import GpuQueue
from gpu_orchestrator.apps.scheduler.accounting.selectors import Selectors
from tests.support.scheduler_objects import gpu_queue

KEYS, VALUES = st.sampled_from("ab"), st.sampled_from("xy")
CONDITIONS = st.builds(
    lambda key, operator, values: {"key": key, "operator": operator, "values": values},
    KEYS,
    st.sampled_from(["In", "NotIn"]),
    st.lists(VALUES, min_size=1, max_size=3),
) | st.builds(
    lambda key, operator: {"key": key, "operator": operator},
    KEYS,
    st.sampled_from(["Exists", "DoesNotExist"]),
)
SELECTORS = st.none() | st.fixed_dictionaries(
    {
        "matchLabels": st.dictionaries(KEYS, VALUES),
        "matchExpressions": st.lists(CONDITIONS, max_size=2),
    }
)
QUEUES = st.tuples(st.sampled_from(["one", "two", "three"]), st.just(None) | st.tuples(SELECTORS))


def rank(queue: GpuQueue) -> tuple[int, str]:
    selector = queue.spec.namespace_selector
    assert selector is not None
    return -len(queue_terms.conditions(selector)), queue.metadata.name


@given(st.lists(QUEUES, max_size=8), st.dictionaries(KEYS, VALUES))
def test_finds_what_a_plain_look_finds(
    changes: list[tuple[str, tuple[Any] | None]], labels: dict[str, str]
) -> None:
    selectors, queues = Selectors(), dict[str, GpuQueue]()
    for name, change in changes:
        queues.pop(name, None)
        if change is not None:
            queues[name] = gpu_queue(name, namespaceSelector=change[0])
        selectors.set(name, queues.get(name))
    wanted = [
        each
        for each in queues.values()
        if (selector := each.spec.namespace_selector) is not None
        and all(one.holds(labels.get(one.key)) for one in queue_terms.conditions(selector))
    ]
    assert selectors.selecting(labels) == tuple(each.metadata.name for each in sorted(wanted, key=rank))
    assert len(selectors) == len(queues)
