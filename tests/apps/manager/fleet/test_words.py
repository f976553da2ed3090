"""Refusals of the core in the manager's words."""

import pytest

from gpu_orchestrator.api import session
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.fleet import rows, strategies, words
from gpu_orchestrator.apps.manager.fleet.nodes import MemoryPolicy, WorkerState, request_of
from gpu_orchestrator.core.answer import Miss, Refusal
from gpu_orchestrator.core.decide import why_not

GPUS = tuple(session.Device(index, f"GPU-{index}", "nvidia", "L4", 24 * 1024) for index in range(4))
POLICY = strategies.registry("balanced").policy()


def worker(name: str = "vm", **rest: object) -> WorkerState:
    known = {"online": True, "devices": GPUS, "task_types": ("echo",), "max_concurrent": 1, **rest}
    online = known.pop("online")
    return WorkerState(session.Hello(name, "i", **known), online=bool(online))  # type: ignore[arg-type]


def refused(spec: TaskSpec, *workers: WorkerState) -> Refusal:
    """Return the real refusal of the core, so that its words and ours cannot drift apart."""
    cluster = rows.cluster_of({each.hello.name: each for each in workers}, MemoryPolicy(), ())
    for each in workers:
        if each.hello.labels.get("busy"):
            cluster.account(rows.placement_of("t", each.hello.name, rows.read_grant("{}")))
    found = why_not(request_of("t", spec).shape, cluster, POLICY)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("spec", "workers", "said"),
    [
        pytest.param(TaskSpec("echo"), [], "0/0 workers fit: no worker is there", id="no workers"),
        pytest.param(
            TaskSpec("echo", memory_mib=900 * 1024),
            [worker()],
            "0/1 workers fit: 1 has no GPU of 900GB",
            id="size as it was asked",
        ),
        pytest.param(
            TaskSpec("python"),
            [worker("a"), worker("b")],
            "0/2 workers fit: 2 do not run python tasks (start one with --function)",
            id="type that is off",
        ),
        pytest.param(
            TaskSpec("sing"), [worker()], "0/1 workers fit: 1 does not run sing tasks", id="unknown type"
        ),
        pytest.param(
            TaskSpec("echo"), [worker(online=False)], "0/1 workers fit: 1 is offline", id="offline worker"
        ),
        pytest.param(
            TaskSpec("echo", gpus=0),
            [worker(labels={"busy": "yes"})],
            "0/1 workers fit: 1 is running as many tasks as it may",
            id="no slot",
        ),
        pytest.param(
            TaskSpec("echo", pool="a100"),
            [worker("a"), worker("b"), worker("c", pool="l4")],
            "0/3 workers fit: 3 are not in pool a100",
            id="pool that no worker is in",
        ),
        pytest.param(
            TaskSpec("echo"),
            [worker(pool="a100")],
            "0/1 workers fit: 1 is in a pool, and the task names none",
            id="worker of a pool",
        ),
        pytest.param(
            TaskSpec("echo", pool="a100", worker_labels={"zone": "b", "disk": "nvme"}),
            [worker("a", pool="a100", labels={"disk": "nvme"}), worker("b", labels={"zone": "b"})],
            "0/2 workers fit: 1 is not in pool a100 and does not have the label disk=nvme, "
            "1 does not have the label zone=b",
            id="labels and pool",
        ),
        pytest.param(
            TaskSpec("sing", worker_labels={"zone": "b", "disk": "nvme"}),
            [worker()],
            "0/1 workers fit: 1 does not run sing tasks and does not have the labels disk=nvme,zone=b",
            id="type and labels",
        ),
        pytest.param(
            TaskSpec("echo", gpus=5), [worker()], "0/1 workers fit: 1 has fewer than 5 free GPUs", id="GPUs"
        ),
    ],
)
def test_refusal_speaks_of_workers(spec: TaskSpec, workers: list[WorkerState], said: str) -> None:
    assert words.message(refused(spec, *workers)) == said


def test_reasons_agree_in_number() -> None:
    refusal = refused(
        TaskSpec("echo"), worker("a", devices=()), worker("b", devices=()), worker("c", online=False)
    )
    assert words.reasons(refusal) == ["2 have no GPU", "1 is offline"]


def test_nearest_worker_does_not_lack_a_free_device_it_has() -> None:
    """Four devices are free, but none is large enough: `lacks 1 free GPU (0 of 1)` would be wrong."""
    assert (
        words.nearest(refused(TaskSpec("echo", memory_mib=400 * 1024), worker())) == "vm has no GPU of 400GB"
    )


@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        (("is cordoned", "lacks 1 free GPU (0 of 1)"), "w is cordoned and lacks 1 free GPU (0 of 1)"),
        (("has no amd GPU", "lacks 2 free GPUs (0 of 2)"), "w has no amd GPU"),
        (("does not match the node affinity",), "w is avoided, because the task died there"),
        (
            ("does not match the selector gpu-orchestrator/handler.python=true",),
            "w does not run python tasks (start it with --function)",
        ),
        (("lacks 1 slots (0 of 1)",), "w is running as many tasks as it may"),
    ],
)
def test_lacks_of_one_worker(lacks: tuple[str, ...], said: str) -> None:
    assert words.nearest(Refusal(1, nearest=Miss("w", lacks))) == said


def test_error_of_a_policy_is_kept() -> None:
    assert words.message(Refusal(2, error="could not be judged: KeyError")) == (
        "0/2 workers fit: could not be judged: KeyError"
    )


@pytest.mark.parametrize(
    ("spec", "workers", "advice"),
    [
        pytest.param(TaskSpec("echo"), [], "; start one with `gpu-orchestrator worker`", id="no workers"),
        pytest.param(
            TaskSpec("echo"),
            [worker(devices=())],
            "; start a worker on a machine with a GPU, or one with --simulate 4 to try things out",
            id="no GPU",
        ),
        pytest.param(
            TaskSpec("echo", memory_mib=900 * 1024),
            [worker()],
            "; none of them ever can: start a worker that can, or cancel the task",
            id="no GPU is large enough",
        ),
        pytest.param(
            TaskSpec("echo"), [worker("a", devices=()), worker("b", online=False)], "", id="one may come back"
        ),
        pytest.param(TaskSpec("echo", gpus=0), [worker(labels={"busy": "yes"})], "", id="no slot now"),
    ],
)
def test_task_that_no_worker_can_ever_take_is_told_what_helps(
    spec: TaskSpec, workers: list[WorkerState], advice: str
) -> None:
    refusal = refused(spec, *workers)
    assert words.why_it_waits(refusal) == words.message(refusal) + advice
    assert words.needs_another_worker(refusal) == bool(advice)


@pytest.mark.parametrize(
    ("task_type", "option"),
    [("python", "--function"), ("my_package.tasks.train", "--app my_package.tasks"), ("nonsense", "")],
)
def test_worker_is_started_with_what_runs_the_task(task_type: str, option: str) -> None:
    assert words.option_for(task_type) == option
