"""Restarts of the operator: what it does when it returns, and how another replica takes over."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from controlplane.process import Process
from tests.faults.proxy import Answer, Call, HoldWatch, Proxy
from tests.scenarios.conftest import NewOperator
from tests.support.hostile_text import nested
from tests.support.operator_process import Operator, Site, eventually
from tests.support.patience import PATIENCE_S
from tests.support.scale import Scale

SHORT_LEASE = {"times": [8, 6, 1]}
"""Shorter than what ships, and longer than a busy machine may stall."""


def test_restart_between_retries_changes_nothing(site: Site, new_operator: NewOperator) -> None:
    site.nodes(1, gpus=4)
    operator = new_operator("--no-leader-elect")
    with operator:
        site.create("big", gpus=8, retryPolicy={"maxRetries": 2, "backoffSeconds": 8})
        before = site.until("big", "Pending")
    operator.start().ready()
    operator.kill()
    with operator:
        failed = site.until("big", "Failed")
    assert failed["completionTime"] >= before["nextRetryTime"]
    written = [line for line in operator.lines() if line.get("workload") == f"{site.namespace}/big"]
    assert [line["phase"] for line in written if "phase" in line] == [
        "Pending",
        "Failed",
    ]


def test_installation_can_let_workloads_wait_for_room(site: Site, new_operator: NewOperator) -> None:
    once = {"maxRetries": 1, "backoffSeconds": 1}
    with new_operator("--no-leader-elect", "--on-no-capacity=Wait"):
        site.create("patient", run_for="100ms", retryPolicy=once)
        site.create("hasty", retryPolicy={**once, "onNoCapacity": "Retry"})
        assert site.until("hasty", "Failed")["retryCount"] == 1
        assert site.until("patient", "Pending")["retryCount"] == 0
        site.nodes(1)
        assert site.until("patient", "Succeeded")["retryCount"] == 0


def test_workload_deleted_without_operator_is_cleaned_up_after_its_start(
    site: Site, new_operator: NewOperator
) -> None:
    site.nodes(1)
    operator = new_operator("--no-leader-elect")
    with operator:
        site.create("left", run_for="1h")
        site.until("left", "Running")
        eventually(lambda: (site.get("left") or {})["metadata"].get("finalizers"), "it has its finalizer")
    site.delete("left")
    assert site.status("left")["phase"] == "Running"
    with operator:
        site.gone("left")
    assert site.jobs() == []
    eventually(lambda: not site.pods(), "the pods are gone")


def test_job_removed_by_its_ttl_without_operator_is_not_run_again(
    site: Site, new_operator: NewOperator
) -> None:
    """The operator writes the result before it sets the TTL, so a removed Job's result is always stored."""
    site.nodes(1)
    operator = new_operator("--no-leader-elect")
    with operator:
        site.create("short", run_for="100ms", ttlSecondsAfterFinished=1)
        site.until("short", "Succeeded")
        eventually(lambda: all("ttlSecondsAfterFinished" in job["spec"] for job in site.jobs()), "TTL is set")
    eventually(lambda: not site.jobs(), "the Job was removed by its TTL")
    with operator:
        site.create("next", run_for="100ms")
        site.until("next", "Succeeded")
    assert site.status("short")["phase"] == "Succeeded"
    assert {job["metadata"]["labels"]["app"] for job in site.jobs()} <= {"next"}


def test_other_replica_takes_over_after_a_kill(
    site: Site, account: Path, tmp_path: Path, scale: Scale, figure: Callable[[str], None]
) -> None:
    site.nodes(1)
    waits = scale(test=SHORT_LEASE, accept=None)
    replicas = [Operator(account, log=tmp_path / f"{number}.log", waits=waits) for number in range(2)]
    leader = replicas[0].start().ready()
    eventually(lambda: any(line["message"] == "leading" for line in leader.lines()), "the first leads")
    with replicas[1]:  # ready as a standby: its watches are synced
        site.create("before", run_for="1h")
        site.until("before", "Running")
        leader.kill()
        killed = time.monotonic()
        site.create("after", run_for="1h")
        site.until("after", "Scheduled", "Running")
        figure(f"first new placement {time.monotonic() - killed:.1f} s after the leader was killed (20 s)")
        assert site.status("before")["phase"] == "Running"
    assert len(site.jobs()) == 2


def test_late_writes_of_a_frozen_leader_are_refused(
    site: Site, account: Path, tmp_path: Path, scale: Scale
) -> None:
    """Freeze the leader while it writes a status and a Job; another replica leads and does the work. The late
    writes of the first leader change nothing, and neither does its work after it wakes up."""
    site.nodes(1)
    waits = scale(test=SHORT_LEASE, accept=None)
    with Proxy(account) as proxy:
        status, create = Hold(), Hold()
        proxy.on("patch", "gpuworkloads/status", do=Call(status))
        proxy.on("create", "jobs", nth=2, do=Call(create))
        old = Operator(proxy.kubeconfig, log=tmp_path / "old.log", waits=waits).start().ready()
        try:
            site.create("one", run_for="1h")
            assert status.came.wait(PATIENCE_S)
            site.create("two", run_for="1h")
            assert create.came.wait(PATIENCE_S)
            old.pause()
            with Operator(account, log=tmp_path / "new.log", waits=waits):
                found = {name: site.until(name, "Running") for name in ("one", "two")}
                uids = {job["metadata"]["uid"] for job in site.jobs()}
                before = len(proxy.requests)
                for hold in (status, create):
                    hold.let_go.set()
                eventually(lambda: late_writes(proxy, before) == [409, 409], "both writes are answered")
                old.resume()
                assert old.wait(60) == 1  # it noticed that it is no longer the leader
                assert set(late_writes(proxy, before)) == {409}  # including retries
                assert {name: site.status(name) for name in found} == found
                assert {job["metadata"]["uid"] for job in site.jobs()} == uids
        finally:
            for hold in (status, create):
                hold.let_go.set()
            old.kill()


class Hold:
    """Holds a request back until `let_go` is set."""

    def __init__(self) -> None:
        self.came, self.let_go = threading.Event(), threading.Event()

    def __call__(self, _: object) -> None:
        self.came.set()
        self.let_go.wait(180)


def late_writes(proxy: Proxy, since: int) -> list[int | None]:
    """Return the statuses of writes after the first `since` requests, without events and the Lease."""
    ours = ("gpuworkloads", "gpuworkloads/status", "jobs")
    sent = [each for each in proxy.requests[since:] if each.resource in ours]
    return [each.status for each in sent if each.verb in ("create", "patch", "delete")]


def test_terminated_leader_is_replaced_at_once(
    site: Site, account: Path, tmp_path: Path, scale: Scale, figure: Callable[[str], None]
) -> None:
    site.nodes(1)
    waits = scale(test={"times": [60, 50, 2]}, accept=None)
    replicas = [Operator(account, log=tmp_path / f"{number}.log", waits=waits) for number in range(2)]
    replicas[0].start().ready()
    eventually(lambda: any(line["message"] == "leading" for line in replicas[0].lines()), "the first leads")
    with replicas[1]:
        assert replicas[0].stop() == 0
        left = time.monotonic()
        site.create("after", run_for="1h")
        # The limit is less than the Lease would have lasted.
        site.until("after", "Scheduled", "Running", timeout_s=scale(test=45, accept=12))
        figure(f"first new placement {time.monotonic() - left:.1f} s after the leader had left (3 s)")


def test_throttling_conflicts_and_server_errors_are_retried(
    site: Site, account: Path, tmp_path: Path
) -> None:
    site.nodes(1)
    with Proxy(account) as proxy, Operator(proxy.kubeconfig, "--no-leader-elect", log=tmp_path / "log"):
        proxy.on("create", "jobs", do=Answer(429, retry_after=1))
        proxy.on("patch", "gpuworkloads", do=Answer(409, reason="Conflict"))
        proxy.on("patch", "gpuworkloads/status", do=Answer(503))
        proxy.on("patch", "gpuworkloads/status", nth=3, do=Answer(409, reason="Conflict"))
        site.create("one", run_for="100ms")
        site.until("one", "Succeeded")
    assert len(site.jobs()) == 1


def test_lagging_watch_causes_no_second_job(site: Site, account: Path, tmp_path: Path) -> None:
    """The watch of Jobs falls silent, but the operator still knows its own writes."""
    site.nodes(1)
    hold = HoldWatch(after_events=1)  # the end of the list, which is empty
    with Proxy(account) as proxy:
        held = proxy.on("watch", "jobs", do=hold)
        flags = ("--no-leader-elect", f"--namespace={site.namespace}")
        with Operator(proxy.kubeconfig, *flags, log=tmp_path / "log") as operator:
            held.wait(60)
            site.create("one", run_for="100ms")
            site.until("one", "Scheduled", "Running")
            for tries in (4, 5, 6):
                trigger_reconcile(site, operator, tries)
            assert site.status("one")["phase"] in ("Scheduled", "Running")
            hold.release()
            site.until("one", "Succeeded")
            creations = [sent for sent in proxy.requests if (sent.verb, sent.resource) == ("create", "jobs")]
    assert len(creations) == 1
    assert len(site.jobs()) == 1


def trigger_reconcile(site: Site, operator: Operator, tries: int) -> None:
    before = reconciles(operator)
    site.patch("one", {"retryPolicy": {"maxRetries": tries}})
    eventually(lambda: reconciles(operator) > before, "it reconciled again")


def reconciles(operator: Operator) -> float:
    name = "warp_gpuworkload_reconcile_duration_seconds_count"
    return sum(value for key, value in operator.metrics().items() if key.startswith(name))


def test_default_path_claimed_requests_bare_gpus(
    site: Site, scheduler: Process, new_operator: NewOperator
) -> None:
    (node,) = site.nodes(1, gpus=4)
    with new_operator("--no-leader-elect", "--default-path=claimed"):
        site.create("two", gpus=2, run_for="1h")
        status = site.until("two", "Running")
    assert (status["assignedNode"], status["message"]) == (node, f"running on {node} (devices 0,1)")
    (pod,) = site.pods()
    assert pod["metadata"]["annotations"]["gpu.scheduling/gpus"] == "2"


def test_spec_edited_before_the_status_is_written_gets_a_new_job(
    site: Site, account: Path, tmp_path: Path
) -> None:
    site.nodes(1, gpus=4)
    with Proxy(account) as proxy:
        edit = Call(lambda _: site.patch("edited", {"gpuCount": 3}))
        proxy.on("patch", "gpuworkloads/status", do=edit)
        with Operator(proxy.kubeconfig, "--no-leader-elect", log=tmp_path / "operator.log"):
            site.create("edited", gpus=1, run_for="1h")
            site.until("edited", "Running")
    (job,) = site.jobs()
    limits = job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "3"
    assert site.status("edited")["observedGeneration"] == 2


def test_workload_nested_too_deep_ends_no_operator(
    deep_json: None, site: Site, new_operator: NewOperator
) -> None:
    """The API server accepts it. Neither the watch of a running operator may end by it, nor the first list
    of the next one."""
    site.nodes(1)
    operator = new_operator("--no-leader-elect")
    with operator:
        site.create("deep", template={"spec": {"dnsConfig": nested(1500)}})
        site.create("deeper-than-we-take", template={"spec": {"dnsConfig": nested(300)}})
        site.create("seen", run_for="100ms")
        site.until("seen", "Succeeded")
        assert "nested deeper than 200 levels" in site.until("deeper-than-we-take", "Failed")["message"]
    with operator:
        site.create("listed", run_for="100ms")
        site.until("listed", "Succeeded")
        site.delete("deep")
