"""Kill the scheduler while a queue has back what it is guaranteed: the next one evicts no more than is
missing, no device is given twice, and the queue has its quota in the end.

Nodes of these clusters run nothing: a pod that is evicted holds its devices until the test ends it.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controlplane.process import Process
from tests.faults.proxy import Call, Cut, DropAnswer, Fault, Proxy
from tests.scenarios.scheduler.test_queues import Queues, pods
from tests.support import invariants
from tests.support.object_history import History
from tests.support.scale import Scale
from tests.support.scheduler_stage import Stage, pod, until

ALONE: dict[str, Any] = {"leaderElect": False, "releaseSeconds": 0, "sweepSeconds": 2}
MOMENTS: dict[str, Fault | None] = {"request": Cut(), "answer": DropAnswer(), "done": None}
NOMINATION, EVICTION, BIND = ("patch", "pods/status"), ("create", "pods/eviction"), ("create", "pods/binding")
EVERY = [
    *((NOMINATION, nth, moment) for nth in (1, 2) for moment in MOMENTS),
    *((EVICTION, nth, moment) for nth in (1, 2, 3, 4) for moment in MOMENTS),
    *((BIND, 1, moment) for moment in MOMENTS),
]
FEW = [(NOMINATION, 2, "answer"), (EVICTION, 2, "request"), (EVICTION, 4, "answer"), (BIND, 1, "request")]


@dataclass
class Teams:
    """Two queues below one that may use eight GPUs, each guaranteed four. `mine` has back what `theirs`
    borrow."""

    mine: Stage
    theirs: Stage
    queues: Queues
    scheduler: Process

    def borrow(self, number: int, **spec: Any) -> list[str]:
        made = pods(f"b{number}", 8, where=self.mine)
        for each in made:
            each["spec"].update(spec)
        self.theirs.create(*made)
        self.theirs.wait_bound()
        return sorted(self.theirs.pods())

    def ending(self) -> list[str]:
        found = self.theirs.pods().items()
        return sorted(name for name, each in found if "deletionTimestamp" in each["metadata"])

    def nominations(self) -> int:
        return self.scheduler.log.read_text().count("pod nominated")

    def has_back(self, name: str) -> None:
        """Wait until the pod has its GPUs, and their owners are those that were evicted."""
        until(lambda: len(self.ending()) >= 4, f"four are evicted\n{self.mine.last_words()}")
        gone = self.ending()
        self.theirs.delete(*gone, force=True)
        self.mine.wait_bound(name)
        until(lambda: self.queues.shows("one", used=4000), "it has what it is guaranteed")
        until(lambda: self.queues.shows("two", used=4000, borrowed=0), "the other has what it is guaranteed")
        assert self.ending() == [], "and nobody else goes"
        assert len(gone) == 4
        assert self.queues.shows("top", used=8000)

    def clear(self) -> None:
        for each in (self.mine, self.theirs):
            each.delete(*each.pods(), force=True)
        until(lambda: not self.mine.leases(), "every lease is gone", 60)


@pytest.fixture
def proxy(bare_stage: Stage) -> Iterator[Proxy]:
    with Proxy(bare_stage.kubeconfig, remember=1000) as made:
        yield made


@pytest.fixture
def teams(bare_stage: Stage, proxy: Proxy, tmp_path: Path) -> Teams:
    cluster, name = bare_stage.cluster, f"{bare_stage.namespace}-b"
    cluster.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    theirs = Stage(cluster, name, tmp_path, bare_stage.system, static=True, closed=True)
    queues = Queues(bare_stage)
    queues.create("top", selects="", limit=8)
    reclaims: dict[str, Any] = {"guaranteed": {"*": 4000}, "preemption": {"reclaim": "Any"}}
    queues.create("one", parent=queues.name("top"), **reclaims)
    queues.create("two", parent=queues.name("top"), selects=name, **reclaims)
    scheduler = bare_stage.scheduler(kubeconfig=proxy.kubeconfig, **ALONE)
    return Teams(bare_stage, theirs, queues, scheduler)


def test_kill_while_quota_is_had_back_evicts_no_more_than_is_missing(
    teams: Teams, proxy: Proxy, scale: Scale, figure: Callable[[str], None]
) -> None:
    """Before, between and after the evictions, and at the bind. Those that are evicted take their time."""
    teams.mine.gpu_nodes(1, gpus=8)
    chosen = scale(test=FEW, accept=EVERY)
    with History(teams.mine.cluster) as history:
        for number, (write, nth, moment) in enumerate(chosen):
            teams.borrow(number)
            name = f"a{number}"
            kill_at(teams, proxy, write, nth, moment)
            teams.mine.create(pod(name, gpus=4))
            if write == BIND:
                until(lambda: len(teams.ending()) == 4, "four are evicted")
                teams.theirs.delete(*teams.ending(), force=True)
                until(lambda: not teams.scheduler.is_running, f"killed at {write} {nth}, {moment}")
                restart(teams, proxy)
                teams.mine.wait_bound(name)
                until(lambda: teams.queues.shows("top", used=8000), "both have theirs")
                assert len(teams.theirs.bound()) == 4
                assert teams.ending() == [], "and nobody else goes"
            else:
                until(lambda: not teams.scheduler.is_running, f"killed at {write} {nth}, {moment}")
                restart(teams, proxy)
                teams.has_back(name)
            teams.clear()
    figure(f"{len(chosen)} kills")
    assert set(invariants.check(history, spare_s=40).binds.values()) == {1}


def test_kills_at_random_moments_while_many_have_quota_back(
    teams: Teams, scale: Scale, figure: Callable[[str], None]
) -> None:
    """Each has its own victims: no more go than all of them lack."""
    nodes, kills, rng = scale(test=2, accept=10), scale(test=3, accept=20), random.Random(3)
    half = 4 * nodes
    for word, spec in {"top": "limit", "one": "guaranteed", "two": "guaranteed"}.items():
        teams.queues.change(word, **{spec: {"*": 1000 * (2 * half if word == "top" else half)}})
    teams.mine.gpu_nodes(nodes, gpus=8)
    teams.theirs.create(*pods("b", 2 * half, where=teams.mine))
    teams.theirs.wait_bound()
    with History(teams.mine.cluster) as history:
        teams.mine.create(*pods("a", half + 2))
        for _ in range(kills):
            time.sleep(rng.uniform(0.0, 2.0))
            teams.scheduler.kill()
            teams.scheduler.start()
        until(lambda: len(teams.ending()) >= half, f"all are evicted\n{teams.mine.last_words()}", 120)
        teams.theirs.delete(*teams.ending(), force=True)
        until(lambda: len(teams.mine.bound()) == half, "the first queue has what it is guaranteed", 120)
        until(lambda: teams.queues.shows("two", used=1000 * half, borrowed=0), "and so has the second")
        assert teams.ending() == [], "and nobody else goes"
        assert len(teams.theirs.pods()) == half
    figure(f"{kills} kills while {half} pods were evicted")
    invariants.check(history, spare_s=60)


def test_victims_on_other_nodes_are_waited_for_by_the_next_scheduler(teams: Teams, proxy: Proxy) -> None:
    """There is room on another node, and none in the queue: its victims have two minutes to end."""
    (node,) = teams.mine.gpu_nodes(1, gpus=8)
    teams.borrow(0, terminationGracePeriodSeconds=120)
    teams.mine.gpu_nodes(1, prefix=f"{teams.mine.namespace}-free", gpus=8)
    kill_at(teams, proxy, EVICTION, 4, "answer")
    teams.mine.create(pod("a", gpus=4))
    until(lambda: not teams.scheduler.is_running, "killed after the last eviction")
    assert len(teams.ending()) == 4
    restart(teams, proxy)
    until(lambda: teams.nominations() >= 2, f"nominated again\n{teams.mine.last_words()}")
    teams.has_back("a")
    assert not teams.mine.bound()["a"].startswith(f"{node}:")


def kill_at(teams: Teams, proxy: Proxy, write: tuple[str, str], nth: int, moment: str) -> None:
    kill = Call(lambda _: teams.scheduler.kill(), at=moment, then=MOMENTS[moment])  # type: ignore[arg-type]
    proxy.on(*write, nth=nth, do=kill)


def restart(teams: Teams, proxy: Proxy) -> None:
    proxy.heal()
    teams.scheduler.start()
