"""What `GET /workers` keeps from one request to the next is never older than the store."""

from typing import Any

import msgspec
import pytest

from gpu_orchestrator.adapters.store.workers import HeldRow
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.fleet import rows
from gpu_orchestrator.apps.manager.fleet.nodes import ActiveAlert, DeviceGrant, MemoryPolicy
from gpu_orchestrator.apps.manager.worker_list import WorkerList

DEVICES = tuple(session.Device(at, f"u{at}", "nvidia", "L4", 24_000) for at in range(2))
HELLO = session.Hello("w", "i", DEVICES, task_types=("echo",), max_concurrent=4)
READING = session.Reading(0, used_mib=100, free_mib=900)
WARMER = session.Reading(0, used_mib=200, free_mib=800)
ROW = {
    "name": "w",
    "spec": rows.encode(HELLO),
    "report": rows.encode(session.Report((READING,))),
    "epoch": "1",
    "state": "online",
    "active": "0",
    "seen": "1700000000000",
}
GRANT = rows.encode(DeviceGrant((session.Given(1, "u1"),), memory_mib=700))
ALERT = msgspec.json.encode([ActiveAlert(0, "temperature", 99.0, "hot", 1)]).decode()


class Read(dict[str, str]):
    """A row that tells what was read of it."""

    def __init__(self, row: dict[str, str]) -> None:
        super().__init__(row)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)


def shown(kept: WorkerList, row: dict[str, str], held: tuple[str, ...] = ()) -> dict[str, Any]:
    info, _ = kept.shown(row, HeldRow((), held))
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(info))
    return found


def test_a_state_follows_from_no_other_text_than_is_compared() -> None:
    row = Read({**ROW, "alerts": ALERT, "cordoned_devices": '["u1"]', "state": "offline"})
    rows.worker_state_of(row)
    assert row.read == set(rows.STATE_FIELDS)


@pytest.mark.parametrize(
    ("change", "held"),
    [
        pytest.param({"seen": "1700000009000", "active": "4"}, (), id="renewal"),
        pytest.param({"report": rows.encode(session.Report((WARMER,)))}, (), id="report"),
        pytest.param({"cordoned_devices": '["u1"]'}, (), id="cordoned device"),
        pytest.param({"cordoned": "1"}, (), id="cordoned"),
        pytest.param({"state": "offline"}, (), id="offline"),
        pytest.param({"alerts": ALERT}, (), id="alert"),
        pytest.param({"done": "90", "failed": "10"}, (), id="ended tasks"),
        pytest.param({}, ("task", GRANT), id="task"),
    ],
)
def test_a_worker_that_was_shown_before_is_shown_as_it_is_now(
    change: dict[str, str], held: tuple[str, ...]
) -> None:
    kept = WorkerList(MemoryPolicy())
    before = shown(kept, ROW)
    now = shown(kept, {**ROW, **change}, held)
    assert now == shown(WorkerList(MemoryPolicy()), {**ROW, **change}, held)
    assert now != before


def test_what_did_not_change_is_shared_and_what_is_gone_is_dropped() -> None:
    kept = WorkerList(MemoryPolicy())
    first, _ = kept.shown(ROW, HeldRow((), ()))
    again, _ = kept.shown({**ROW, "seen": "1700000009000"}, HeldRow((), ()))
    assert again.gpu_info is first.gpu_info
    kept.keep_only({"another"})
    later, _ = kept.shown(ROW, HeldRow((), ()))
    assert later.gpu_info is not first.gpu_info
