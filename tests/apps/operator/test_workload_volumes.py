"""Where the volumes of a workload can be mounted, and why a Job creates no pod: what the API server tells."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

from gpu_orchestrator.adapters.kube import errors
from gpu_orchestrator.adapters.kube.transport import urls
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.api.kubernetes import Event
from gpu_orchestrator.apps.operator.observe import job_events, snapshot_reader, workload_volumes
from gpu_orchestrator.apps.operator.planning.snapshot import Volumes, WorkloadSnapshot
from gpu_orchestrator.core.request import Expression, Term
from tests.support.operator_builders import NOW, after, job, later, plan_for, workload

THERE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["c"]}]}
MOUNTED = {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]}
FAILED = {"conditions": {"Failed": "BackoffLimitExceeded"}}
BOUND = {"spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}
PENDING = {"spec": {"storageClassName": "fast"}, "status": {"phase": "Pending"}}
LOCAL = {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [THERE]}}}}
EXISTING: dict[str, dict[str, Any]] = {"persistentvolumeclaims/data": BOUND, "persistentvolumes/pv": LOCAL}


class Server:
    """Answers `get` from these objects, by plural and name."""

    def __init__(self, objects: dict[str, dict[str, Any]], *, forbidden: bool = False) -> None:
        self._objects, self._forbidden = objects, forbidden
        self.asked: list[str] = []

    async def get(self, kind: Any, name: str, namespace: str = "") -> Any:
        asked = errors.Operation("get", kind.plural, kind.group)
        if self._forbidden:
            raise errors.Forbidden(asked, errors.Status(message="no"))
        urls.target(kind, name, namespace)  # raises for a name that no path can contain
        self.asked.append(f"{kind.plural}/{name}")
        found = self._objects.get(f"{kind.plural}/{name}")
        if found is None:
            raise errors.NotFound(asked, errors.Status(message="none"))
        meta = {"metadata": {"name": name, "namespace": namespace}}
        return msgspec.convert({**meta, **found}, kind.type)


def examined(objects: dict[str, dict[str, Any]], *, forbidden: bool = False) -> Volumes:
    server = Server(objects, forbidden=forbidden)
    return asyncio.run(workload_volumes.examine(cast(Any, server), workload(template={"spec": MOUNTED})))


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        pytest.param(EXISTING, Volumes(((Term((Expression("zone", "In", ("c",)),)),),)), id="bound"),
        pytest.param({**EXISTING, "persistentvolumes/pv": {}}, Volumes(), id="reachable everywhere"),
        pytest.param(
            {},
            Volumes(not_ready="PersistentVolumeClaim team/data does not exist; create it"),
            id="missing",
        ),
        pytest.param(
            {"persistentvolumeclaims/data": BOUND},
            Volumes(not_ready="PersistentVolume pv of team/data does not exist"),
            id="volume missing",
        ),
        pytest.param(
            {
                "persistentvolumeclaims/data": PENDING,
                "storageclasses/fast": {"volumeBindingMode": "WaitForFirstConsumer"},
            },
            Volumes(is_open=True),
            id="waits for its pod",
        ),
        pytest.param(
            {
                "persistentvolumeclaims/data": PENDING,
                "storageclasses/fast": {"volumeBindingMode": "Immediate"},
            },
            Volumes(not_ready="PersistentVolumeClaim team/data is not bound to a volume yet"),
            id="not bound yet",
        ),
        pytest.param(
            {"persistentvolumeclaims/data": PENDING},
            Volumes(not_ready="PersistentVolumeClaim team/data is not bound to a volume yet"),
            id="unknown class",
        ),
    ],
)
def test_volumes_of_a_workload(objects: dict[str, dict[str, Any]], expected: Volumes) -> None:
    assert examined(objects) == expected


def test_choice_is_left_to_the_kube_scheduler_without_the_right_to_read_volumes() -> None:
    assert examined(EXISTING, forbidden=True) == Volumes(is_open=True)


@pytest.mark.parametrize("name", ["", "a/b", "..", "50%"])
def test_name_that_no_object_can_have_is_not_asked_for(name: str) -> None:
    odd = workload(template={"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": name}}]}})
    found = asyncio.run(workload_volumes.examine(cast(Any, Server({})), odd))
    assert found.not_ready == f"PersistentVolumeClaim team/{name} does not exist; create it"
    odd_volume = {"spec": {"volumeName": name or "/"}, "status": {"phase": "Bound"}}
    assert "does not exist" in examined({"persistentvolumeclaims/data": odd_volume}).not_ready


def mounting(count: int) -> GPUWorkload:
    claims = [{"persistentVolumeClaim": {"claimName": f"data-{number}"}} for number in range(count)]
    return workload(template={"spec": {"volumes": claims * 2}})


def test_storage_class_and_claims_are_read_once() -> None:
    objects = {f"persistentvolumeclaims/data-{number}": PENDING for number in range(64)}
    fast = {"storageclasses/fast": {"volumeBindingMode": "WaitForFirstConsumer"}}
    server = Server({**objects, **fast})
    assert asyncio.run(workload_volumes.examine(cast(Any, server), mounting(64))) == Volumes(is_open=True)
    assert sorted(server.asked) == sorted([*objects, *fast])


def test_more_claims_than_the_template_may_have_are_not_read() -> None:
    assert len(workload_volumes.mounted(mounting(64))) == 64
    assert workload_volumes.mounted(mounting(65)) == []


@pytest.mark.parametrize("volumes", [None, [], "x", [{"persistentVolumeClaim": 1}], [{"name": "tmp"}]])
def test_template_without_claims_mounts_nothing(volumes: Any) -> None:
    assert workload_volumes.mounted(workload(template={"spec": {"volumes": volumes}})) == []


@pytest.mark.parametrize(
    ("fields", "made", "needed"),
    [
        pytest.param({}, {}, True, id="no Job yet"),
        pytest.param({"status": {"phase": "Pending", "retryCount": 1}}, FAILED, True, id="a try failed"),
        pytest.param({}, {"created": NOW}, False, id="has its Job"),
        pytest.param({"suspend": True}, {}, False, id="suspended"),
        pytest.param({"claim": {}}, {}, False, id="claimed"),
        pytest.param({"status": {"phase": "Failed"}}, {}, False, id="ended"),
        pytest.param({"template": {}}, {}, False, id="without volumes"),
    ],
)
def test_volumes_are_read_before_each_choice(
    fields: dict[str, Any], made: dict[str, Any], needed: bool
) -> None:
    owner = workload(**{"template": {"spec": MOUNTED}, **fields})
    jobs = (job(owner, "a", **made),) if made else ()
    assert snapshot_reader._needs_volumes(WorkloadSnapshot(owner, jobs), NOW) is needed


def test_volumes_are_not_read_while_no_place_is_sought() -> None:
    """When they are not read, the plan must not look at them, and the other way round."""
    snapshot = WorkloadSnapshot(workload(template={"spec": MOUNTED}), volumes=Volumes(not_ready="missing"))
    waiting = replace(snapshot, workload=after(snapshot, plan_for(snapshot)))
    for seconds, needed in ((29, False), (30, True)):
        assert snapshot_reader._needs_volumes(waiting, later(seconds)) is needed
        assert (plan_for(waiting, at=later(seconds)).status is not None) is needed


def event(note: str, **more: Any) -> Event:
    return msgspec.convert({"metadata": {"name": note}, "note": note, **more}, Event)


def test_newest_warning_counts_whatever_form_its_time_has() -> None:
    old = event("old", deprecatedLastTimestamp="2026-01-01T12:00:00Z")
    new = event("new", eventTime="2026-01-01T12:00:01.000000Z")
    again = {"count": 3, "lastObservedTime": "2026-01-01T12:00:02.000000Z"}
    series = event("series", eventTime="2026-01-01T11:00:00.000000Z", series=again)
    assert job_events.newest([new, old]) == "new"
    assert job_events.newest([series, new, old]) == "series"
    assert job_events.newest([]) == ""
