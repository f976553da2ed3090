"""Which tests may run at the same time when pytest has several workers (`pytest -n 2`).

A file stays together on one worker, so its module fixtures start once. Files that measure speed, delay or
memory, or that load both cores, form one group: they run one after the other, beside lighter ones.
"""

import os
from typing import NamedTuple

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

HEAVY = frozenset(
    {
        "tests/load/test_steady.py",
        "tests/scenarios/manager/test_bounds.py",
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


class Worker(NamedTuple):
    number: int
    of: int


def worker() -> Worker | None:
    """Return which worker of `pytest -n` this process is, or None outside of them."""
    if name := os.environ.get("PYTEST_XDIST_WORKER"):
        return Worker(int(name.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    return None


class Groups(LoadScopeScheduling):
    """Hand out one group of tests after the other, heavy ones first."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

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
        self.workqueue.update({group: tests for group, tests in work.items() if not all(tests.values())})
        for other in self.assigned_work:
            if other in self.registered_collections:  # else it still collects, and gets work afterwards
                self._reschedule(other)
        return lost


def group_of(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return "heavy" if file in HEAVY else file


def rank(nodeid: str) -> int:
    """Return 0 for heavy tests, 1 for other long ones, 2 for the rest."""
    if group_of(nodeid) == "heavy":
        return 0
    return 1 if nodeid.startswith(FIRST) else 2
