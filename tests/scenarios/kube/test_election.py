"""Electors as real processes. The tests kill, terminate or freeze the leader.

Each process logs the moments at which it led. The terms of two processes must never overlap.
"""

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane.cluster import Cluster
from gpu_orchestrator.adapters.clock import elapsed_s
from tests.support import warm
from tests.support.patience import PATIENCE_S
from tests.support.scale import Scale

Process = subprocess.Popen[bytes]


class Candidates:
    def __init__(
        self, cluster: Cluster, namespace: str, log: Path, times: tuple[float, float, float]
    ) -> None:
        self._cluster, self._namespace, self._log, self.times = cluster, namespace, log, times
        self.processes: dict[str, Process] = {}
        log.touch()

    def start(self, identity: str) -> Process:
        words = [self._cluster.kubeconfig, self._namespace, identity, self._log, *self.times]
        command = [sys.executable, "-m", "tests.support.elector_process", *map(str, words)]
        self.processes[identity] = warm.Popen(command)
        return self.processes[identity]

    @property
    def terms(self) -> dict[tuple[str, int], tuple[float, float]]:
        """Return the first and last moment of each term of each candidate."""
        found: dict[tuple[str, int], tuple[float, float]] = {}
        for line in self._log.read_text().splitlines():
            identity, term, moment = line.split()
            first, _ = found.get((identity, int(term)), (float(moment), 0.0))
            found[identity, int(term)] = (first, float(moment))
        return found

    def wait_for(self, what: Callable[[], bool], within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while not what():
            assert time.monotonic() < deadline, f"not within {within_s} s; terms: {self.terms}"
            time.sleep(0.02)

    def has_led(self, identity: str) -> bool:
        return any(candidate == identity for candidate, _ in self.terms)

    def close(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.processes.values():
            process.wait(30)


@pytest.fixture
def candidates(cluster: Cluster, namespace: str, tmp_path: Path, scale: Scale) -> Iterator[Candidates]:
    made = Candidates(cluster, namespace, tmp_path / "log", scale(test=(6, 4, 0.5), accept=(15, 10, 2)))
    yield made
    made.close()
    # In every test: no two terms overlap.
    ordered = sorted(made.terms.values())
    for (_, end), (start, _) in itertools.pairwise(ordered):
        assert end < start, f"two led at once: {made.terms}"


@pytest.fixture
def leader(candidates: Candidates) -> Process:
    return start_both(candidates)


def start_both(candidates: Candidates) -> Process:
    """Start `a`, which leads and is returned, and `b`, which waits."""
    process = candidates.start("a")
    candidates.wait_for(lambda: candidates.has_led("a"), PATIENCE_S)
    candidates.start("b")
    return process


def holder(cluster: Cluster, namespace: str) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/the-lease"
    found: str = cluster.api.request("GET", path)["spec"].get("holderIdentity", "")
    return found


def let_both_run(candidates: Candidates) -> None:
    """Wait long enough for the follower to read the lease several times."""
    _, _, retry_s = candidates.times
    time.sleep(1 + 3 * retry_s)


def test_terminated_leader_hands_over_at_once(
    candidates: Candidates, cluster: Cluster, namespace: str, scale: Scale
) -> None:
    """Long before its lease would expire."""
    candidates.times = scale(test=(60, 50, 0.5), accept=candidates.times)
    leader = start_both(candidates)
    let_both_run(candidates)
    terminated_at = elapsed_s()
    leader.terminate()
    assert leader.wait(PATIENCE_S) == 0
    assert holder(cluster, namespace) in ("", "b")
    candidates.wait_for(lambda: candidates.has_led("b"), PATIENCE_S)
    first, _ = candidates.terms["b", 0]
    assert first - terminated_at < scale(test=30.0, accept=3.0)


def test_killed_leader_is_replaced_after_its_lease(
    candidates: Candidates, leader: Process, scale: Scale
) -> None:
    let_both_run(candidates)
    leader.kill()
    leader.wait()
    killed_at = elapsed_s()
    lease_s, renew_s, retry_s = candidates.times
    spare_s = scale(test=PATIENCE_S, accept=5.0)
    candidates.wait_for(lambda: candidates.has_led("b"), lease_s + 3 * retry_s + spare_s)
    first, _ = candidates.terms["b", 0]
    assert first - killed_at > lease_s - renew_s  # it had renewed within renew_s before it was killed


def test_leader_frozen_past_its_lease_wakes_up_as_follower(
    candidates: Candidates, leader: Process, cluster: Cluster, namespace: str
) -> None:
    let_both_run(candidates)
    leader.send_signal(signal.SIGSTOP)
    candidates.wait_for(lambda: candidates.has_led("b"), PATIENCE_S)
    leader.send_signal(signal.SIGCONT)
    let_both_run(candidates)
    assert leader.poll() is None
    assert holder(cluster, namespace) == "b"
    # It leads again after the new leader ends.
    candidates.processes["b"].terminate()
    candidates.wait_for(lambda: ("a", 1) in candidates.terms, PATIENCE_S)
