"""Tasks, workers, keys and events as rows, cards and lines, also with the fields of an older server."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_orchestrator.cli import audit, events, key, schedule, task_rows, worker_rows
from gpu_orchestrator.cli.tables import Page, card, table
from gpu_orchestrator.cli.task import verdict
from gpu_orchestrator.cli.watch import picture

NOW = datetime(2026, 11, 16, 12, 0, 0, tzinfo=UTC)
ID = "3f2a" * 8


def task(status: str = "running", **more: Any) -> dict[str, Any]:
    return {
        "task_id": ID,
        "status": status,
        "task_type": "sleep",
        "assigned_worker": "vm",
        "created_at": "2026-11-16T11:57:00.000Z",
        "started_at": "2026-11-16T11:59:18.000Z",
        "completed_at": None,
        "duration_seconds": None,
        "progress": None,
        **more,
    }


DEVICES = [{"index": 0, "uuid": "GPU-a", "model": "L4"}, {"index": 3, "uuid": "GPU-b", "model": "L4"}]


@pytest.mark.parametrize(
    ("given", "row"),
    [
        pytest.param(task(), f"{ID} running sleep vm - 3m 42s -", id="running shows elapsed time"),
        pytest.param(
            task("completed", duration_seconds=1052.9), f"{ID} completed sleep vm - 3m 17m 33s -", id="done"
        ),
        pytest.param(task(gpus=2), f"{ID} running sleep vm 2 3m 42s -", id="asked for two"),
        pytest.param(task(gpus=2, devices=DEVICES), f"{ID} running sleep vm #0 #3 3m 42s -", id="got two"),
        pytest.param(
            task(gpus=5, devices=[{"index": at} for at in (0, 1, 4, 5, 6)]),
            f"{ID} running sleep vm #0 #1 #4-6 3m 42s -",
            id="got many",
        ),
        pytest.param(
            task("queued", reason="0/3 workers fit: 2 are offline, 1 has no GPU"),
            f"{ID} queued sleep vm - 3m - 2 are offline, 1 has no GPU",
            id="reason without the count",
        ),
        pytest.param(
            task("queued", assigned_worker=None, started_at=None, queue_position=4, reason="no room"),
            f"{ID} queued sleep - - 3m - #4: no room",
            id="queued shows position and reason",
        ),
        pytest.param(
            task(
                "failed", error={"type": "ValueError", "message": "bad\ntrace"}, reason="failed; not retried"
            ),
            f"{ID} failed sleep vm - 3m - ValueError: bad",
            id="failed shows the error",
        ),
        pytest.param(task(progress="epoch 3"), f"{ID} running sleep vm - 3m 42s epoch 3", id="progress"),
        pytest.param(
            {"task_id": ID, "status": "queued"}, f"{ID} queued - - - - - -", id="hardly anything known"
        ),
    ],
)
def test_row_of_a_task(given: dict[str, Any], row: str) -> None:
    columns, rows = task_rows.table([given], NOW)
    assert table(columns, rows)[1].split() == row.split()


def test_wide_row_has_devices_by_uuid_and_labels() -> None:
    given = task(
        devices=DEVICES[:1], memory_reserved="4GB", gpus=1, owner="ann", labels={"team": "x"}, priority=75
    )
    columns, rows = task_rows.table([given], NOW, wide=True)
    head, row = table(columns, rows)
    more = ["POSITION", "DEVICES", "MEMORY", "ATTEMPT", "PRIORITY", "OWNER", "LABELS", "PROGRESS", "REASON"]
    assert head.split()[7:] == more
    assert "0 L4 GPU-a" in row
    assert "4GB" in row
    assert "team=x" in row


def test_card_of_a_task() -> None:
    given = task(
        "failed",
        devices=DEVICES[:1],
        gpus=1,
        memory_reserved="4GB",
        error={"type": "ValueError", "message": "bad"},
        deaths=[
            {"worker": "w", "attempt": 1, "kind": "runner", "evidence": "killed", "at": 1_794_830_400_000}
        ],
        result=None,
    )
    lines = card(task_rows.card(given, NOW, UTC))
    assert "started  11:59:18 (42s ago)" in lines
    assert "devices  0  L4  GPU-a" in lines
    assert "gpus     1, 4GB" in lines
    assert "error    ValueError: bad" in lines
    assert any(line.endswith("attempt 1 on w: killed") for line in lines)
    assert not any(line.startswith(("result", "labels", "ended")) for line in lines)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (task(devices=DEVICES[:1], progress="epoch 3"), "running on vm, GPU 0 (L4), 42s: epoch 3"),
        (task("queued", queue_position=2, reason="no room"), "queued, 2 in the queue: no room"),
        (task("completed", duration_seconds=3.0), "completed on vm, 3s"),
        ({"task_id": ID, "status": "queued"}, "queued"),
    ],
)
def test_line_of_a_task(given: dict[str, Any], line: str) -> None:
    assert task_rows.line(given, NOW) == line


def test_watched_list_says_how_many_there_are() -> None:
    lines = picture([task()], 105, "", NOW, Page(80), 20)
    assert lines[-1] == "1 of 105 tasks; Ctrl-C ends this view, not the tasks"
    assert picture([task()], 1, "no answer", NOW, Page(80), 20)[-1] == "no answer"


def test_watched_list_is_no_taller_than_its_terminal() -> None:
    waits = task("queued", reason="0/3 workers fit: 2 are offline, 1 has fewer than 4 free GPUs")
    lines = picture([waits] * 4, 4, "", NOW, Page(80), 5)
    assert [line.startswith("    ") for line in lines[:5]] == [False, False, True, False, True]
    assert lines[5:] == ["", "2 of 4 tasks; Ctrl-C ends this view, not the tasks"]


def gpu(index: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "index": index,
        "uuid": f"GPU-{index}",
        "model": "L4",
        "memory_total_bytes": 24 * 2**30,
        "memory_used_bytes": 2**29,
        "memory_reserved_bytes": 4 * 2**30,
        "temperature": 61.0,
        "utilization": 0.5,
        "cordoned": False,
        "problem": "",
        **more,
    }


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([], "none"),
        ([gpu(0), gpu(1)], "2 × L4"),
        ([gpu(0, cordoned=True), gpu(1)], "2 × L4 (1 cordoned)"),
        ([gpu(0, problem="fell off the bus"), gpu(1, model="H200")], "1 × H200, 1 × L4 (1 faulty)"),
    ],
)
def test_gpus_in_words(found: list[dict[str, Any]], words: str) -> None:
    assert worker_rows.gpus(found) == words


def worker(name: str, on_disconnect: str) -> dict[str, Any]:
    known = {"worker_id": name, "status": "online", "gpu_info": [], "current_tasks": 0, "max_concurrent": 1}
    return {**known, "on_disconnect": on_disconnect}


def test_worker_that_keeps_its_tasks_shows_in_list_and_card() -> None:
    usual, other = worker("a", "stop"), worker("b", "keep")
    columns, rows = worker_rows.table([usual, other], NOW)
    assert [(row[0], row[-1]) for row in rows] == [("a", "stop"), ("b", "keep")]
    assert columns[-1].head == "ON DISCONNECT"
    assert "ON DISCONNECT" not in [column.head for column in worker_rows.table([usual], NOW)[0]]
    assert "may run twice" in str(dict(worker_rows.card(other, NOW))["on disconnect"])


def test_devices_of_a_worker_show_cordon_temperature_and_alert() -> None:
    alert = {"kind": "temperature", "message": "91 °C", "value": 91, "since": ""}
    columns, rows = worker_rows.devices([gpu(0, cordoned=True), gpu(1, alerts=[alert])])
    _, first, second = table(columns, rows)
    assert first.split() == ["0", "cordoned", "L4", "24GB", "4GB", "512MB", "61", "°C", "50%", "GPU-0", "-"]
    assert second.endswith("91 °C")
    assert "alert" in second


def test_status_explains_memory_that_cannot_be_reserved() -> None:
    answer = {
        "status": "healthy",
        "active_workers": 1,
        "total_workers": 1,
        "queued_tasks": 0,
        "running_tasks": 2,
        "tasks": {"completed": 3, "failed": 1},
        "total_memory_bytes": 96 * 2**30,
        "available_memory_bytes": int(76.8 * 2**30),
        "gpu_utilization": 0.25,
        "uptime_seconds": 331.0,
    }
    lines = card(worker_rows.status(answer))
    why = "(GPU_MEMORY_THRESHOLD keeps a part of each device back)"
    assert f"GPU memory  96GB; 76.8GB can still be reserved {why}" in lines
    assert "tasks       0 queued, 2 running, 3 completed, 1 failed" in lines
    assert "up for      5m 31s" in lines
    exact = card(worker_rows.status({**answer, "memory_threshold": 0.8}))
    assert any("(GPU_MEMORY_THRESHOLD keeps 20% of each device back)" in line for line in exact)
    none = {**answer, "total_memory_bytes": 0, "available_memory_bytes": 0}
    assert "GPU memory  none: no worker that is online has a GPU" in card(worker_rows.status(none))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"entries": [{}] * 2, "total": 5, "next": 4}, "2 of 5 (--limit, --before 4)"),
        ({"entries": [{}] * 2, "total": 5, "next": None}, ""),
        ({"entries": [{}] * 5, "total": 5, "next": 1}, ""),
    ],
)
def test_audit_says_that_there_is_more_only_if_there_is(answer: dict[str, Any], said: str) -> None:
    assert audit.more(answer) == said


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"status": "queued", "reason": "no room"}, "queued: no room"),
        ({"status": "failed", "reason": "failed; not retried"}, "failed; not retried"),
        ({"status": "queued", "reason": "", "would_go_to": "vm"}, "queued: goes to vm"),
        ({"status": "completed", "reason": ""}, "completed"),
    ],
)
def test_explanation_begins_with_the_state(answer: dict[str, Any], said: str) -> None:
    assert verdict(answer) == said


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"running_tasks": 1, "queued_tasks": 2}, "1 running task, 2 waiting tasks"),
        ({"requests_per_minute": 1, "gpu_seconds_per_day": 1}, "1 request a minute, 1 GPU second a day"),
    ],
)
def test_one_is_singular(limits: dict[str, int], words: str) -> None:
    assert key.limits_in_words(limits) == words


def test_key_shows_its_limits_and_when_it_expires() -> None:
    given = {
        "key_id": "284ea33bee196abe",
        "name": "ann",
        "owner": "ann",
        "scopes": ["submit"],
        "status": "active",
        "limits": {"running_tasks": 4, "queued_tasks": 0, "weight": 2.0},
        "configured": False,
        "expires_at": "2027-02-14T12:00:00Z",
        "last_used_at": None,
    }
    limits = "4 running tasks, any number of waiting tasks, weight 2"
    assert key.row(given, NOW)[5:] == ["in 90d", "never", limits]
    used = {"configured": True, "expires_at": None, "last_used_at": "2026-11-16T11:57:00Z"}
    assert key.row({**given, **used}, NOW)[5:] == ["never", "3m ago", "no limits"]


@pytest.mark.parametrize(
    ("name", "data", "row"),
    [
        pytest.param(
            "task_completed",
            {
                "task_id": "a",
                "worker_id": "vm",
                "attempt": 1,
                "status": "completed",
                "duration_seconds": 40.2,
            },
            ["a", "on vm; 40s"],
            id="completed",
        ),
        pytest.param(
            "task_failed",
            {"task_id": "a", "worker_id": "vm", "attempt": 2, "error": {"type": "E", "message": "m"}},
            ["a", "E: m; on vm; attempt 2"],
            id="error first",
        ),
        pytest.param(
            "task_started",
            {"task_id": "a", "worker_id": "vm", "attempt": 1, "devices": [{"index": 1, "model": "L4"}]},
            ["a", "on vm; GPU 1 (L4)"],
            id="devices",
        ),
        pytest.param(
            "worker_status_changed",
            {"worker_id": "vm", "status": "draining", "reason": ""},
            ["vm", "draining"],
            id="worker",
        ),
    ],
)
def test_row_of_an_event(name: str, data: dict[str, Any], row: list[str]) -> None:
    event = {"event": name, "timestamp": "2026-11-16T08:05:30Z", "data": data}
    assert events.row(event, NOW, utc=True) == ["08:05:30", name, *row]


@pytest.mark.parametrize(
    ("name", "wanted", "is_wanted"),
    [
        ("task_failed", (), True),
        ("task_failed", ("task_failed",), True),
        ("task_failed", ("task_",), True),
        ("task_failed", ("gpu_alert", "worker_"), False),
    ],
)
def test_events_are_chosen_by_type(name: str, wanted: tuple[str, ...], is_wanted: bool) -> None:
    assert events.is_wanted(name, wanted) is is_wanted


KEY = {
    "key_id": "bootstrap-worker",
    "name": "bootstrap-worker",
    "owner": "worker",
    "scopes": ["worker"],
    "status": "active",
    "limits": {"running_tasks": 4, "queued_tasks": 0},
}


@pytest.mark.parametrize("width", [110, 80, 60])
def test_limits_of_a_key_are_shown_at_every_width(width: int) -> None:
    shown = table(key.COLUMNS, [key.row(KEY, NOW)], Page(width))
    assert "4 running tasks, any number of waiting tasks" in "\n".join(shown)
    assert max(map(len, shown)) <= width


ROUTE = "POST /workers/{worker_id}/devices/{index}/uncordon"


@pytest.mark.parametrize("width", [None, 110, 80, 60])
def test_audit_never_cuts_the_route_or_the_object(width: int | None) -> None:
    entry = {
        "time": "2026-11-16T11:57:00Z",
        "owner": "admin",
        "action": ROUTE,
        "object": ID,
        "status": 200,
        "key_id": "bootstrap",
        "source": "127.0.0.1",
        "number": 12,
    }
    shown = table(audit.COLUMNS, [audit.row(entry, NOW, UTC)], Page(width))
    assert ROUTE in shown[1]
    assert ID in "\n".join(shown)
    assert "…" not in "\n".join(shown)
    assert width is None or max(map(len, shown)) <= width
    assert width is not None or shown[1].endswith("12"), "in a pipe nothing is left out"


def test_explained_task_says_where_it_ran_last() -> None:
    assert task_rows.last_place({"last_worker": "vm", "last_devices": DEVICES}) == (
        "on vm, GPU 0 (L4) and GPU 3 (L4)"
    )
    assert task_rows.last_place({"last_worker": None, "last_devices": []}) == ""
    assert task_rows.last_place({}) == "", "an older server does not send it"


def test_stopped_schedule_says_why_below() -> None:
    shown = schedule.row(
        {
            "name": "nightly",
            "schedule": "0 3 * * *",
            "timezone": "Europe/Berlin",
            "task_type": "echo",
            "status": "stopped",
            "next_at": None,
            "last_at": "2026-11-16T11:57:00Z",
            "fired": 3,
            "owner": "ann",
            "reason": "the key k1, with which it was added, was revoked",
        },
        NOW,
    )
    lines = table(schedule.COLUMNS, [shown], Page(70))
    assert "0 3 * * * (Europe/Berlin)" in lines[1]
    assert "the key k1, with which it was added, was revoked" in "\n".join(lines[2:])
    assert max(map(len, lines)) <= 70


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"status": "queued", "queue_position": 2, "reason": "no room"}, "#2: no room; expires in 5m"),
        ({"status": "scheduled", "reason": "waits for task a"}, "waits for task a; expires in 5m"),
        ({"status": "running", "progress": "half"}, "half"),
        ({"status": "completed"}, ""),
    ],
)
def test_waiting_task_says_when_it_expires(more: dict[str, Any], said: str) -> None:
    assert task_rows.detail(task(**more, expires="2026-11-16T12:05:00.000Z"), NOW) == said
