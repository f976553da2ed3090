"""Which tests may run at the same time when pytest has several workers (`pytest -n 2`).

A file stays together on one worker, so its module fixtures start once. Files that measure speed, delay or
memory, or that load both cores, form one group: they run one after the other, beside lighter ones.
"""

import os
from typing import Any, NamedTuple

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

FIRST = (
    "tests/scenarios",
    "tests/apps/manager/http/test_workers.py",
    "tests/apps/worker/test_worker.py",
    "tests/cli/test_first_start.py",
    "tests/controlplane",
    "tests/faults",
    "tests/forgery",
    "tests/properties",
    "tests/scripts",
    "tests/test_readme.py",
    "tests/test_resume_ledger.py",
)
"""What takes longest. It starts first, so that the many short files fill up the end of the run."""

HOMES = {
    "tests/scenarios/operator": "operator_cluster",
    "tests/scenarios/kube/test_hostile.py": "operator_cluster",
    "tests/scenarios/kube/test_manifests.py": "operator_cluster",
    "tests/scenarios/kube/test_own_strategy.py": "operator_cluster",
    "tests/scenarios/agent": "agent_cluster",
    "tests/api/test_accepted.py": "cluster",
    "tests/api/test_kubectl.py": "cluster",
    "tests/api/test_kubernetes.py": "cluster",
    "tests/api/test_refusals.py": "cluster",
    "tests/api/test_unchangeable.py": "cluster",
    "tests/contracts/test_kube_client.py": "cluster",
    "tests/controlplane/test_cluster.py": "cluster",
    "tests/controlplane/test_real_node.py": "cluster",
    "tests/faults/test_real.py": "cluster",
    "tests/scenarios/kube": "cluster",
    "tests/scenarios/manager/test_autoscale_kubernetes.py": "cluster",
    "tests/scenarios/scheduler": "cluster",
    "tests/scenarios/webhook": "cluster",
}
"""The fixture with the control plane that the tests of a file share. To start one takes five seconds of CPU,
to keep an idle one a fortieth of a core: a worker gets the files that share what it has, and all end when no
such file is left."""

TWICE = "cluster"
"""Most files share this one. Of many workers two may have it: one would still be at them when all others have
ended."""
MANY = 5

HEAVY = frozenset(
    {
        "tests/load/test_steady.py",
        "tests/scenarios/manager/test_bounds.py",
        "tests/scenarios/manager/test_gangs.py",
        "tests/scenarios/manager/test_logs.py",
        "tests/scenarios/manager/test_nemesis.py",
        "tests/scenarios/scheduler/test_crashes.py",
        "tests/scenarios/scheduler/test_leadership.py",
        "tests/scenarios/scheduler/test_races.py",
        "tests/scenarios/scheduler/test_scale.py",
        "tests/scenarios/manager/test_sharing.py",
        "tests/test_makefile.py",
    }
)

PLANES = frozenset({*HOMES.values(), "bare_clusters"})


class Worker(NamedTuple):
    number: int
    of: int


def worker() -> Worker | None:
    """Return which worker of `pytest -n` this process is, or None outside of them."""
    if name := os.environ.get("PYTEST_XDIST_WORKER"):
        return Worker(int(name.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    return None


class Groups(LoadScopeScheduling):
    """Hand out one group of tests after the other, heavy ones first, each where its control plane runs."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._at_home: dict[str, list[WorkerController]] = {}

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Take the first group that needs no control plane of another worker; if all do, the first of all."""
        group = next((each for each in self.workqueue if self._suits(each, node)), next(iter(self.workqueue)))
        if (home := home_of(group)) and node not in (at_home := self._at_home.setdefault(home, [])):
            at_home.append(node)
        self.workqueue.move_to_end(group, last=False)
        super()._assign_work_unit(node)

    def _suits(self, group: str, node: WorkerController) -> bool:
        home = home_of(group)
        at_home = self._at_home.get(home, [])
        most = 2 if home == TWICE and len(self.nodes) >= MANY else 1
        return not home or node in at_home or len(at_home) < most

    def remove_node(self, node: WorkerController) -> str | None:
        """Hand the rest of a lost worker's tests to others; return the test in which it was lost.

        The library would also hand out finished groups, and a worker that gets one without a test hangs.
        """
        work = self.assigned_work.pop(node)
        rest = [
            (group, test) for group, tests in work.items() for test, is_done in tests.items() if not is_done
        ]
        if not rest:
            return None
        group, lost = rest[0]
        work[group][lost] = True
        for at_home in self._at_home.values():
            if node in at_home:
                at_home.remove(node)
        self.workqueue.update({group: tests for group, tests in work.items() if not all(tests.values())})
        for other in self.assigned_work:
            if other in self.registered_collections:  # else it still collects, and gets work afterwards
                self._reschedule(other)
        return lost


def group_of(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return "heavy" if file in HEAVY else file


def home_of(file: str) -> str:
    """Return the fixture with the control plane that tests of this file share; empty if they share none."""
    places = (file, file.rpartition("/")[0])
    return "" if group_of(file) == "heavy" else next((HOMES[each] for each in places if each in HOMES), "")


def rank(nodeid: str) -> int:
    """Return 0 for heavy tests, 1 for those that share a control plane, 2 for other long ones, 3 for the
    rest."""
    group = group_of(nodeid)
    if group == "heavy":
        return 0
    if home_of(group):
        return 1
    return 2 if nodeid.startswith(FIRST) else 3


def is_past_planes(nodeid: str) -> bool:
    """Tell whether a worker that runs this test will get no more that share a control plane."""
    return rank(nodeid) > 1
