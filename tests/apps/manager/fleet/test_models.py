"""What is known of models, and what their copies leave free."""

from typing import Any

import msgspec
import pytest

from gpu_orchestrator.adapters.store.models import ModelRow
from gpu_orchestrator.api import session
from gpu_orchestrator.api.task import TaskSpec
from gpu_orchestrator.apps.manager.fleet import model_words, rows
from gpu_orchestrator.apps.manager.fleet.models import Declared, Measured, ModelBook, known_model
from gpu_orchestrator.apps.manager.fleet.nodes import MemoryPolicy, WorkerState, plain_shape, request_of
from gpu_orchestrator.core.answer import Placement
from tests.support.scripted_worker import device, hello, reading

GIB = 1024
ALL = MemoryPolicy(threshold=1.0, headroom_mib=0)


def book(*rows_: tuple[str, Declared | None, dict[str, Measured]]) -> ModelBook:
    found = ModelBook()
    found.replace(
        known_model(
            ModelRow(
                name,
                msgspec.json.encode(declared).decode() if declared else "",
                msgspec.json.encode(measured).decode() if measured else "",
                "",
            )
        )
        for name, declared, measured in rows_
    )
    return found


def loaded(model: str = "m", gib: int = 8, **rest: Any) -> session.Copy:
    known = {
        "devices": (0,),
        "number": 1,
        "is_loaded": True,
        "used_mib": gib * GIB,
        "load_s": 2.0,
        "uses": 1.0,
    }
    return session.Copy(model, **{**known, **rest})


@pytest.mark.parametrize(
    ("declared", "measured", "mib"),
    [
        pytest.param(None, {}, 0, id="nothing is known"),
        pytest.param(Declared("chat", 8000), {}, 8000, id="declared"),
        pytest.param(
            Declared("chat", 8000), {"L4": Measured(5000, 1.0)}, 5056, id="measured counts, rounded up"
        ),
        pytest.param(
            None, {"L4": Measured(5000, 1.0), "H200": Measured(6400, 1.0)}, 6400, id="the larger of two kinds"
        ),
        pytest.param(Declared("chat", 8000), {"": Measured(0, 1.0)}, 8000, id="the driver tells nothing"),
    ],
)
def test_task_reserves_what_its_model_takes(
    declared: Declared | None, measured: dict[str, Measured], mib: int
) -> None:
    sizes = book(("m", declared, measured)).memory_mib
    spec = TaskSpec("chat", model="m")
    assert (plain_shape(spec, sizes).memory_mib, plain_shape(spec, sizes).exclusive) == (max(mib, 1), not mib)
    more = plain_shape(TaskSpec("chat", model="m", memory_mib=20_000), sizes)
    assert (more.memory_mib, more.model) == (20_000, "m")
    assert plain_shape(TaskSpec("chat", model="m", gpus=0), sizes).memory_mib == 0


def test_load_on_one_worker_fits_there_alone() -> None:
    spec = TaskSpec("chat", model="m", gpus=0, worker="b", only_load=True)
    cluster = rows.cluster_of(
        {name: WorkerState(hello(name, task_types=("chat",))) for name in "ab"}, ALL, ()
    )
    from gpu_orchestrator.core.decide import fits

    shape = request_of("t", spec).shape
    assert [fits(shape, cluster, name) for name in "ab"] == [False, True]


def test_measurement_is_stored_once_and_again_when_it_grew_much() -> None:
    empty = ModelBook()
    (stored,) = empty.learnt([loaded()], {0: "L4"}).values()
    assert msgspec.json.decode(stored) == {"L4": {"mib": 8 * GIB, "load_s": 2.0}}
    known = book(("m", None, {"L4": Measured(8 * GIB, 2.0)}))
    assert known.learnt([loaded()], {0: "L4"}) == {}
    assert known.learnt([loaded(used_mib=8 * GIB + 10, load_s=2.5)], {0: "L4"}) == {}
    assert "m" in known.learnt([loaded(gib=9)], {0: "L4"})
    assert "m" in known.learnt([loaded()], {0: "H200"}), "another kind of device"
    in_use = (loaded(task="t"), loaded(uses=0.0), loaded(is_loaded=False))
    assert empty.learnt(in_use, {0: "L4"}) == {}


@pytest.mark.parametrize(
    ("copies", "held", "free"),
    [
        pytest.param([loaded()], [], 24, id="an idle copy is free"),
        pytest.param([loaded(task="t1")], ["t1"], 16, id="one in use is not"),
        pytest.param([loaded(task="t0")], [], 24, id="its task has ended since the report"),
        pytest.param([loaded()], ["t1"], 16, id="a task began since the report"),
        pytest.param([loaded(task="t0")], ["t1"], 16, id="one ended and another began"),
        pytest.param([loaded(pinned=True)], [], 16, id="a pinned one is not"),
        pytest.param([loaded(pinned=True)], ["t1"], 8, id="nor beside another task"),
    ],
)
def test_idle_copies_leave_their_memory_free(copies: list[session.Copy], held: list[str], free: int) -> None:
    """What the driver says is the same in all cases: 16 of 24 GiB are free."""
    in_use = tuple(session.Held(each.task, 1, each.used_mib) for each in copies if each.task)
    now = session.Reading(0, 8 * GIB, 16 * GIB, held=in_use)
    greeting = hello("w", devices=(device(0),), task_types=("chat",), model_types=("chat",))
    worker = WorkerState(greeting, readings=(now,), copies=tuple(copies))
    places = [Placement(key, "w", (0,), exclusive=False, milli=0, memory_mib=8 * GIB) for key in held]
    if copies[0].pinned and held:
        places = [Placement("t1", "w", (0,), exclusive=False, milli=0, memory_mib=8 * GIB)]
    places += rows.pins_on(worker, places)
    from gpu_orchestrator.apps.manager.fleet.nodes import node_of
    from gpu_orchestrator.core.cluster import Cluster

    cluster = Cluster([node_of(worker, ALL, rows.reserved_on(worker, ALL, places))])
    for each in places:
        cluster.account(each)
    assert int(cluster.usage.free_mib[cluster.row("w"), 0]) == free * GIB


@pytest.mark.parametrize(
    ("copies", "says"),
    [
        pytest.param(
            [], "waits for its turn to load model 'm': tasks of loaded models may go before it", id="no"
        ),
        pytest.param([loaded("other")], "waits for its turn to load model 'm'", id="others"),
        pytest.param([loaded(is_loaded=False)], "waits for model 'm', which w loads now", id="loading"),
        pytest.param([loaded()], "waits for the copy of model 'm' on w, which other tasks use", id="loaded"),
    ],
)
def test_reason_names_the_copy_that_a_task_waits_for(copies: list[session.Copy], says: str) -> None:
    worker = WorkerState(hello("w"), readings=(reading(0),), copies=tuple(copies))
    assert model_words.why_it_waits("m", [worker]).startswith(says)


def test_report_of_copies_that_cannot_be_is_not_believed() -> None:
    greeting = hello("w", devices=(device(0),), task_types=("chat",), model_types=("chat",))
    copies = (loaded("far", devices=(7,)), loaded("huge", gib=1000), loaded("cpu", devices=()))
    report = session.Report((reading(0),), copies=copies)
    row = {"spec": rows.encode(greeting), "report": rows.encode(report), "epoch": "1", "state": "online"}
    worker = rows.worker_state_of({**row, "reported": "5000"})
    assert [(each.model, each.used_mib) for each in worker.copies] == [("huge", 24 * GIB), ("cpu", 0)]
    assert worker.reported_s == 5.0
