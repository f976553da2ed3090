"""The counters of the leader's table equal a recount, whatever happens to its tasks."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.dispatch.task_table import QueueDepth, TaskTable, TrackedTask

names = st.sampled_from(["t1", "t2", "t3", "t4"])
tracked = st.builds(
    TrackedTask,
    st.builds(
        TaskSpec, st.just("echo"), priority=st.sampled_from((10, 50)), tenant=st.sampled_from(("a", "b"))
    ),
    st.just(0),
    st.just(0.0),
    waits=st.booleans(),
)
steps = st.lists(
    st.tuples(st.just("put"), names, tracked)
    | st.tuples(st.just("discard"), names, st.none())
    | st.tuples(st.just("waits"), names, st.booleans())
)


def recounted(table: TaskTable) -> QueueDepth:
    depth = QueueDepth()
    for known in table.values():
        (depth.waiting_of if known.waits else depth.running_of)[known.spec.tenant] += 1
        if known.waits:
            depth.waiting[known.spec.priority] += 1
    return depth


@given(steps)
def test_counters_equal_a_recount(changes: list[tuple]) -> None:  # type: ignore[type-arg]
    table = TaskTable()
    for kind, name, value in changes:
        if kind == "put":
            table[name] = TrackedTask(value.spec, 0, 0.0, waits=value.waits)
        elif kind == "discard":
            table.discard(name)
        else:
            table.set_waits(name, value)
        assert table.depth == recounted(table)
        assert all(count > 0 for counts in _counters(table.depth) for count in counts.values())


def _counters(depth: QueueDepth) -> tuple[dict[int, int] | dict[str, int], ...]:
    return depth.waiting, depth.waiting_of, depth.running_of
