"""Queues with quota on a real control plane: limits hold and say so, also when the scheduler is killed at
binds, when queues are renamed, and when labels change meanwhile."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from controlplane.api import ApiError, Json
from tests.faults.proxy import Call, Cut, DropAnswer, Fault, Proxy
from tests.support import documents, namespaces
from tests.support.paths import ROOT
from tests.support.scale import Scale
from tests.support.scheduler_stage import QUEUES, Stage, pod, until

LABEL = "gpu.scheduling/queue"
MERGE = "application/merge-patch+json"
MOMENTS: dict[str, Fault] = {"request": Cut(), "answer": DropAnswer()}
ALONE: dict[str, Any] = {"leaderElect": False, "releaseSeconds": 1, "sweepSeconds": 2}


@dataclass
class Queues:
    """Queues of one test; their names begin with that of its namespace."""

    stage: Stage
    made: list[str] = field(default_factory=list)

    def name(self, word: str) -> str:
        return f"{self.stage.namespace}-{word}"

    def create(self, word: str, *, selects: str | None = None, limit: int | None = None, **spec: Any) -> str:
        """Create a queue that selects this namespace, or that `selects`; none if that is empty."""
        where = self.stage.namespace if selects is None else selects
        if where:
            spec["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": where}}
        if limit is not None:
            spec["limit"] = {"*": 1000 * limit}
        head = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuQueue", "metadata": {"name": self.name(word)}}
        self.stage.cluster.api.request("POST", QUEUES, {**head, "spec": spec})
        self.made.append(word)
        return self.name(word)

    def change(self, word: str, **spec: Any) -> None:
        path = f"{QUEUES}/{self.name(word)}"
        self.stage.cluster.api.request("PATCH", path, {"spec": spec}, content_type=MERGE)

    def delete(self, word: str) -> None:
        self.stage.cluster.api.request("DELETE", f"{QUEUES}/{self.name(word)}")
        self.made.remove(word)

    def status(self, word: str) -> Json:
        found: Json = self.stage.cluster.api.request("GET", f"{QUEUES}/{self.name(word)}").get("status", {})
        return found

    def ready(self, word: str) -> tuple[str, str]:
        """Return whether the queue is ready, and why not."""
        conditions = self.status(word).get("conditions", [])
        found: Json = next((each for each in conditions if each["type"] == "Ready"), {})
        return found.get("status", ""), found.get("message", "")

    def shows(self, word: str, **wanted: Any) -> bool:
        """Return True if the status says this; amounts are those of all models."""
        status = self.status(word)
        amounts = {part: status.get(part, {}).get("*", 0) for part in ("used", "borrowed", "lent")}
        found = {**amounts, "pending": status.get("pending", 0)}
        return {part: found[part] for part in wanted} == wanted


@pytest.fixture
def queues(stage: Stage) -> Iterator[Queues]:
    made = Queues(stage)
    yield made
    for each in list(made.made):
        made.delete(each)


@pytest.fixture
def beside(stage: Stage, tmp_path: Path) -> Iterator[Stage]:
    """Another namespace, whose pods the same scheduler places on the same nodes."""
    with namespaces.fresh(stage.cluster) as name:
        other = Stage(stage.cluster, name, tmp_path, stage.system, stage.scheduler_name, closed=stage.closed)
        yield other


def pods(
    prefix: str, count: int, *, queue: str = "", where: Stage | None = None, gpus: int = 1
) -> list[Json]:
    meta = {"labels": {LABEL: queue} if queue else {}}
    node: Json = {"nodeSelector": {"stage": where.namespace}} if where else {}
    return [pod(f"{prefix}-{at}", gpus=gpus, meta=meta, **node) for at in range(count)]


def gang_of(name: str, size: int) -> list[Json]:
    terms = {"gpu.scheduling/gang": name, "gpu.scheduling/gang-size": str(size)}
    return [pod(f"{name}-{at}", gpus=1, annotations=terms) for at in range(size)]


def test_limit_holds_and_the_waiting_pod_says_why(stage: Stage, queues: Queues) -> None:
    stage.gpu_nodes(1, gpus=8)
    queues.create("team", limit=4)
    stage.scheduler(releaseSeconds=0)
    stage.create(*pods("p", 6), *pods("wrong", 1, queue="x" * 63))
    until(lambda: queues.shows("team", used=4000, pending=2), "four of six are bound")
    assert len(stage.bound()) == 4
    waiting = min({f"p-{at}" for at in range(6)} - set(stage.bound()))
    stage.wait_event(waiting, f"queue {queues.name('team')}: 4 of 4 GPUs used")
    stage.wait_event("wrong-0", f"label {LABEL} names xxx")
    stage.wait_event("wrong-0", f"name one of {queues.name('team')}, or remove the label")
    queues.change("team", limit={"*": 5000})
    until(lambda: len(stage.bound()) == 5, "one more is bound")
    stage.delete(next(iter(stage.bound())))
    until(lambda: len(stage.pods()) == 6 and len(stage.bound()) == 5, "the last one comes in for it")
    queues.delete("team")
    stage.wait_bound(*(name for name in stage.pods() if name != "wrong-0"))
    until(lambda: "wrong-0" in stage.bound(), "without any queue the label says nothing")
    assert stage.holds_exactly()


def test_unused_quota_is_lent_and_the_message_names_who_has_it(
    stage: Stage, beside: Stage, queues: Queues
) -> None:
    stage.gpu_nodes(1, gpus=8)
    queues.create("top", selects="", limit=8)
    for word, where in (("one", stage), ("two", beside)):
        parent = queues.name("top")
        queues.create(word, selects=where.namespace, parent=parent, guaranteed={"*": 4000})
    stage.scheduler(releaseSeconds=0)
    beside.create(*pods("b", 8, where=stage))
    beside.wait_bound()
    until(lambda: queues.shows("two", used=8000, borrowed=4000), "the second queue borrows")
    stage.create(*pods("a", 1))
    said = f"queue {queues.name('top')}: 8 of 8 GPUs used, 4 borrowed by {queues.name('two')}"
    stage.wait_event("a-0", said)
    until(lambda: queues.shows("one", used=0, pending=1), "the first queue has a pod that waits")
    beside.delete("b-0")
    stage.wait_bound("a-0")
    until(lambda: queues.shows("top", used=8000), "the sum is that of both")


@pytest.mark.parametrize("gang", [0, 4], ids=["pods", "gang"])
def test_guaranteed_quota_is_had_back_from_the_queue_that_borrows_it(
    stage: Stage, beside: Stage, queues: Queues, figure: Callable[[str], None], gang: int
) -> None:
    """No more goes than is borrowed, whatever waits; a gang has it back whole."""
    stage.gpu_nodes(1, gpus=8)
    reclaims: dict[str, Any] = {"preemption": {"reclaim": "Any"}}
    queues.create("one", guaranteed={"*": 4000}, **reclaims)
    queues.create("two", selects=beside.namespace, guaranteed={"*": 4000}, **reclaims)
    stage.scheduler(releaseSeconds=0)
    beside.create(*pods("b", 10, where=stage))
    until(lambda: queues.shows("two", used=8000, borrowed=4000, pending=2), "the second queue borrows")
    began = time.monotonic()
    stage.create(*gang_of("g", gang), *([] if gang else pods("a", 6)))
    until(lambda: len(stage.bound()) == 4, "the first queue has what it is guaranteed")
    figure(f"4 guaranteed GPUs had back after {time.monotonic() - began:.1f} s")
    until(lambda: queues.shows("two", used=4000, borrowed=0, pending=2), "no more is taken")
    evicted = {f"b-{at}" for at in range(10)} - set(beside.pods())
    assert len(evicted) == 4
    whom = f"{'gang ' if gang else ''}{stage.namespace}/{'g' if gang else 'a-'}"
    why = f"evicted to give queue {queues.name('one')} what it is guaranteed, for {whom}"
    beside.wait_event(min(evicted), f"Preempted: {why}")


def test_queue_that_makes_no_sense_admits_nothing_until_it_is_mended(stage: Stage, queues: Queues) -> None:
    stage.gpu_nodes(1, gpus=2)
    queues.create("one", parent=queues.name("two"))
    stage.scheduler(releaseSeconds=0)
    stage.create(*pods("p", 1))
    unknown = f"queue {queues.name('one')}: queue {queues.name('two')} above it does not exist"
    stage.wait_event("p-0", unknown)
    until(lambda: queues.ready("one") == ("False", unknown), "the queue says so, too")
    queues.create("two", selects="", parent=queues.name("one"))
    until(lambda: "circle" in queues.ready("one")[1], "now it is a circle")
    stage.wait_event("p-0", "the queues above it form a circle")
    assert stage.bound() == {}
    queues.change("two", parent=None)
    stage.wait_bound("p-0")
    until(lambda: queues.ready("one") == ("True", ""), "it is ready")


def test_queue_that_is_renamed_takes_over_what_runs(stage: Stage, queues: Queues) -> None:
    stage.gpu_nodes(1, gpus=8)
    queues.create("old", limit=2)
    stage.scheduler(releaseSeconds=0)
    stage.create(*pods("p", 2))
    stage.wait_bound()
    queues.create("new", limit=3)
    queues.delete("old")
    until(lambda: queues.shows("new", used=2000), "what runs counts in the new queue")
    stage.create(*pods("q", 2))
    until(lambda: queues.shows("new", used=3000, pending=1), "there is room for one of two")
    assert len(stage.bound()) == 3


def test_next_scheduler_knows_in_which_queue_each_pod_was_bound(stage: Stage, queues: Queues) -> None:
    """While none runs, the owner writes another queue's name on the pods that run."""
    stage.gpu_nodes(1, gpus=8)
    queues.create("one", limit=3)
    queues.create("two", limit=2)
    scheduler = stage.scheduler(releaseSeconds=0)
    stage.create(*pods("p", 3, queue=queues.name("one")))
    stage.wait_bound()
    scheduler.kill()
    relabelled = {"metadata": {"labels": {LABEL: queues.name("two")}}}
    for name in stage.pods():
        stage.cluster.api.request("PATCH", f"{stage.pods_path}/{name}", relabelled, content_type=MERGE)
    stage.create(*pods("q", 3, queue=queues.name("two")), *pods("r", 1, queue=queues.name("one")))
    scheduler.start()
    until(lambda: queues.shows("two", used=2000, pending=1), "two of the second queue")
    assert queues.shows("one", used=3000, pending=1)
    assert len(stage.bound()) == 5
    assert "r-0" not in stage.bound()


def test_tenant_who_writes_labels_gains_no_quota(stage: Stage, beside: Stage, queues: Queues) -> None:
    """On pods that run and on those that wait: other queues that select the namespace, one that does not, and
    words that name none."""
    stage.gpu_nodes(1, gpus=8)
    one, two, rich = (
        queues.create("one", limit=2),
        queues.create("two", limit=2),
        queues.create("rich", selects=beside.namespace, limit=8),
    )
    stage.scheduler(releaseSeconds=0)
    stage.create(*pods("p", 4, queue=one))
    until(lambda: queues.shows("one", used=2000, pending=2), "two of four are bound")
    running = sorted(stage.bound())
    moves, stays = sorted(set(stage.pods()) - set(running))
    for text in (two, rich, "default", "none-of_these", "", None):
        for name in running:
            _label(stage, name, text)
    _label(stage, moves, two)
    _label(stage, stays, rich)
    stage.wait_bound(moves)
    stage.wait_event(stays, "and no queue of this name selects namespace")
    stage.create(*pods("q", 1, queue=one), *pods("r", 2, queue=two))
    stage.wait_event("q-0", f"queue {one}: 2 of 2 GPUs used")
    until(lambda: queues.shows("two", used=2000, pending=1), "what waits counts where it says, and has room")
    until(lambda: queues.shows("one", used=2000, pending=1), "what runs counts where it was bound")
    assert queues.shows("rich", used=0, pending=0)
    assert len(stage.bound()) == 4


def _label(stage: Stage, name: str, queue: str | None) -> None:
    body = {"metadata": {"labels": {LABEL: queue}}}
    stage.cluster.api.request("PATCH", f"{stage.pods_path}/{name}", body, content_type=MERGE)


def test_large_pod_is_not_starved_by_small_ones_of_its_queue(stage: Stage, queues: Queues) -> None:
    """Nobody is evicted for the small ones that it keeps out either: there is room for them."""
    stage.gpu_nodes(1, gpus=8)
    one = queues.create("one", limit=4, preemption={"within": "LowerPriority"})
    stage.scheduler(releaseSeconds=0, sweepSeconds=2, reserveAfterSeconds=2, holdSeconds=600)
    stage.create(*pods("small", 4))
    stage.wait_bound()
    stage.create(*pods("large", 1, gpus=4))
    stage.wait_event("large-0", f"queue {one}: 4 of 4 GPUs used")
    stage.wait_event("large-0", "waits: what it needs of its queue is kept for it until")
    for at in range(4):
        stage.create(*pods(f"late-{at}", 1))
        stage.wait_event(f"late-{at}-0", f"queue {one}: ")
        stage.delete(f"small-{at}")
        if at < 3:
            stage.wait_event(f"late-{at}-0", f"{3 - at} of 4 GPUs used, 4 kept for one that waits longer")
    stage.wait_bound("large-0")
    assert set(stage.bound()) == {"large-0"}


def test_kill_at_any_bind_leaves_no_queue_above_its_limit(
    bare_stage: Stage, scale: Scale, figure: Callable[[str], None]
) -> None:
    """Small scale: before the first lease, at a bind that was carried out, and at one that was not."""
    every = [
        (resource, nth, moment)
        for resource in ("leases", "pods/binding")
        for nth in range(1, 6)
        for moment in MOMENTS
    ]
    few = [("leases", 1, "answer"), ("pods/binding", 2, "answer"), ("pods/binding", 4, "request")]
    queues = Queues(bare_stage)
    bare_stage.gpu_nodes(2, gpus=8)
    queues.create("top", selects="", limit=5)
    queues.create("team", parent=queues.name("top"))
    chosen = scale(test=few, accept=every)
    with Proxy(bare_stage.kubeconfig, remember=1000) as proxy:
        scheduler = bare_stage.scheduler(kubeconfig=proxy.kubeconfig, **ALONE)
        for number, (resource, nth, moment) in enumerate(chosen):
            kill = Call(lambda _: scheduler.kill(), at=moment, then=MOMENTS[moment])  # type: ignore[arg-type]
            proxy.on("create", resource, nth=nth, do=kill)
            bare_stage.create(*pods(f"r{number}", 9))
            until(lambda: not scheduler.is_running, f"killed at {resource} {nth}, {moment}")
            proxy.heal()
            scheduler.start()
            until(lambda: len(bare_stage.bound()) >= 5, "as many are bound as may be")
            for waiting in set(bare_stage.pods()) - set(bare_stage.bound()):
                bare_stage.wait_event(waiting, f"queue {queues.name('top')}: 5 of 5 GPUs used")
            assert len(bare_stage.bound()) == 5
            assert bare_stage.holds_exactly()
            bare_stage.delete(*bare_stage.pods(), force=True)
            until(lambda: not bare_stage.leases(), "every lease is gone", 60)
    figure(f"{len(chosen)} kills")


def test_commands_of_the_guide(bare_stage: Stage, tmp_path: Path) -> None:
    """docs/scheduler.md, and with it examples/gpuqueue.yaml."""
    cluster = bare_stage.cluster
    cluster.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": "train-1"}})
    chosen = documents.run_by("tests/scenarios/scheduler/test_queues.py", "docs/scheduler.md")
    assert chosen
    path = ":".join([str(cluster.toolbox.get("kubectl")["kubectl"].parent), os.environ["PATH"]])
    terminal = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PATH": path}
    bare_stage.gpu_nodes(1, gpus=2)
    bare_stage.scheduler(**ALONE)
    documents.type_in(chosen, cwd=ROOT, env=terminal)
    other = Stage(cluster, "train-1", tmp_path, bare_stage.system, closed=True)
    other.create(*pods("p", 1, where=bare_stage))
    other.wait_bound()
    company = f"{QUEUES}/company"
    until(
        lambda: cluster.api.request("GET", company).get("status", {}).get("used", {}).get("*") == 1000,
        "it counts in the team's queue and above",
    )


def test_queue_named_default_is_refused(stage: Stage) -> None:
    head = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuQueue", "metadata": {"name": "default"}}
    with pytest.raises(ApiError, match="stands for the pods that no queue selects"):
        stage.cluster.api.request("POST", QUEUES, {**head, "spec": {}})
