"""Kill the operator at every write, at three moments. Each run must end as an undisturbed run does.

The writes are those of an undisturbed run, in its order. Each is killed before the server receives it, when
the server has done it but the answer is lost, and after the answer has arrived.
"""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from controlplane.cluster import Cluster
from tests.faults.proxy import Call, Cut, DropAnswer, Fault, Proxy
from tests.support.operator_process import ACCOUNT, Operator, Site, eventually
from tests.support.scale import Scale

OURS = ("gpuworkloads", "gpuworkloads/status", "gpuclaims", "jobs")
WRITES = ("create", "patch", "delete")
MOMENTS = ("not forwarded", "answer lost", "after the answer")
SOON = {"maxRetries": 2, "backoffSeconds": 1}

Write = tuple[str, str, int]
"""Verb, resource, and its number among writes with the same verb and resource."""


def succeeds(site: Site) -> None:
    """Create a workload and wait until it has succeeded and its Job has a TTL."""
    site.create("one", run_for="200ms", ttlSecondsAfterFinished=600)
    site.until("one", "Succeeded")
    eventually(lambda: all("ttlSecondsAfterFinished" in job["spec"] for job in site.jobs()), "the TTL is set")


def fails(site: Site) -> None:
    """Create a workload whose Jobs fail until no retry is left."""
    site.create("one", run_for="100ms", outcome="fail", retryPolicy=SOON)
    site.until("one", "Failed")


def is_suspended(site: Site) -> None:
    site.create("one", run_for="1h")
    site.until("one", "Running")
    # Wait for it, or the two writes could overlap and be sent twice in this run but not in the next.
    eventually(lambda: (site.get("one") or {})["metadata"].get("finalizers"), "it has its finalizer")
    site.patch("one", {"suspend": True})
    site.until("one", "Pending")
    eventually(lambda: not site.jobs(), "the Job is gone")


def is_claimed(site: Site) -> None:
    """As `succeeds`, but the gpu-scheduler allocates a device."""
    site.create("one", run_for="200ms", claim={"devices": {"policy": "packed"}}, ttlSecondsAfterFinished=600)
    site.until("one", "Succeeded")
    eventually(lambda: all("ttlSecondsAfterFinished" in job["spec"] for job in site.jobs()), "the TTL is set")


def never_fits(site: Site) -> None:
    """Create a workload that the gpu-scheduler cannot place until no retry is left."""
    site.create("one", gpus=8, claim={"devices": {"policy": "packed"}}, retryPolicy=SOON)
    site.until("one", "Failed")
    eventually(lambda: not site.jobs(), "the Job is gone")


STORIES: dict[str, Callable[[Site], None]] = {
    "succeeds": succeeds,
    "fails": fails,
    "is suspended": is_suspended,
    "is claimed": is_claimed,
    "never fits": never_fits,
}


@dataclass
class Outcome:
    """How a story ended, without values that differ from run to run."""

    status: Any
    jobs: list[Any]
    created: tuple[int, int]


def play(site: Site, story: str) -> Outcome:
    node = site.nodes(1, gpus=4)[0]
    STORIES[story](site)
    outcome = Outcome(plain(site.status("one"), node), sorted(map(_of_job, site.jobs())), (0, 0))
    site.delete("one")
    site.gone("one")
    # If the kill came before the finalizer, Kubernetes cleans up a moment later.
    eventually(lambda: not site.jobs() and not site.pods(), "nothing is left")
    outcome.created = created(site, "jobs"), created(site, "gpuclaims")
    return outcome


def _of_job(job: dict[str, Any]) -> str:
    name = re.sub(r"-job-[0-9a-f]{8}", "-job-UID", job["metadata"]["name"])
    return f"{name} ttl={job['spec'].get('ttlSecondsAfterFinished')}"


def plain(value: Any, node: str) -> Any:
    match value:
        case dict():
            return {name: plain(each, node) for name, each in value.items() if not name.endswith("Time")}
        case list():
            return [plain(each, node) for each in value]
        case str():
            return re.sub(r"-job-[0-9a-f]{8}", "-job-UID", value).replace(node, "NODE")
    return value


def created(site: Site, resource: str) -> int:
    """Return how many of these the operator has created."""
    entries = (
        entry for entry in site.cluster.audit.entries(site.namespace) if entry.namespace == site.namespace
    )
    made = (entry for entry in entries if entry.user.endswith(f":{ACCOUNT}"))
    return sum((entry.verb, entry.resource, entry.code) == ("create", resource, 201) for entry in made)


def kill_fault(moment: str, kill: Callable[[object], None]) -> Fault:
    match moment:
        case "not forwarded":
            return Call(kill, then=Cut(), at="request")
        case "answer lost":
            return Call(kill, then=DropAnswer(), at="answer")
    return Call(kill, at="done")


@pytest.fixture
def proxy(account: Path) -> Iterator[Proxy]:
    with Proxy(account) as running:
        yield running


@pytest.fixture
def operator(proxy: Proxy, tmp_path: Path) -> Iterator[Operator]:
    """One operator for all runs of a story: after each kill it starts again, and the next run uses that."""
    with Operator(proxy.kubeconfig, "--no-leader-elect", log=tmp_path / "operator.log") as running:
        yield running


def undisturbed(story: str, cluster: Cluster, proxy: Proxy) -> tuple[Outcome, list[Write]]:
    """Run a story without faults and return its outcome and its writes."""
    with closing(Site(cluster)) as site:
        outcome = play(site, story)
        return outcome, writes_in(proxy)


def writes_in(proxy: Proxy) -> list[Write]:
    seen: Counter[tuple[str, str]] = Counter()
    writes: list[Write] = []
    for sent in proxy.requests:
        verb, resource = sent[0], sent[1]
        if verb in WRITES and resource in OURS:
            seen[verb, resource] += 1
            writes.append((verb, resource, seen[verb, resource]))
    return writes


@pytest.mark.timeout(900)
@pytest.mark.parametrize("story", STORIES)
@pytest.mark.usefixtures("scheduler")
def test_kill_at_any_write_does_not_change_the_outcome(
    story: str,
    operator_cluster: Cluster,
    operator: Operator,
    proxy: Proxy,
    scale: Scale,
    figure: Callable[[str], None],
) -> None:
    expected, writes = undisturbed(story, operator_cluster, proxy)
    points = [(write, moment) for write in writes for moment in MOMENTS]
    # Small scale: every write of the first story at one moment in turn, and some of the others. Full scale:
    # every moment of every write.
    one_each = list(zip(writes, cycle(MOMENTS), strict=False))
    chosen = scale(test=one_each if story == "succeeds" else one_each[2::4], accept=points)
    kills = 0
    for write, moment in chosen:
        found, was_killed = killed_at(write, moment, story, operator_cluster, operator, proxy)
        assert found == expected, f"killed at {write}, {moment}; log: {operator.log}"
        kills += was_killed
    # The operator may combine two changes in one write, so a run may have one write less than expected.
    assert kills >= 0.8 * (len(chosen) - 1)
    figure(f"{kills} of {len(points)} kills, each at another point of {len(writes)} writes")


def killed_at(
    write: Write, moment: str, story: str, cluster: Cluster, operator: Operator, proxy: Proxy
) -> tuple[Outcome, bool]:
    """Run a story with this kill. Return its outcome, and whether it reached that write."""
    with closing(Site(cluster)) as site:
        verb, resource, nth = write
        killed, over, judging = threading.Event(), threading.Event(), threading.Lock()

        def kill(_: object) -> None:
            with judging:
                if (
                    not over.is_set()
                ):  # else it was the last write of the story, and it would not be restarted
                    operator.kill()
                    killed.set()

        def start_again() -> None:
            killed.wait()
            if not over.is_set():
                operator.start()

        proxy.on(verb, resource, nth=nth, do=kill_fault(moment, kill))
        helper = threading.Thread(target=start_again, daemon=True)
        helper.start()
        outcome = play(site, story)
        proxy.heal()
        with judging:
            was_killed = killed.is_set()
            if not was_killed:
                over.set()
                killed.set()
        helper.join()
        operator.ready()
    return outcome, was_killed
