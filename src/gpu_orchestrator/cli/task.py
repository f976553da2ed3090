"""`gpu-orchestrator task …`: submit tasks to a cluster manager and follow them."""

import json
import sys
from typing import Annotated, Any

from cyclopts import App, Parameter

app = App(name="task", help="Submit tasks and follow them.")
AsJson = Annotated[bool, Parameter(name="--json", negative="")]
COLUMNS = {
    "TASK": "task_id",
    "STATUS": "status",
    "TYPE": "task_type",
    "WORKER": "assigned_worker",
    "ATTEMPT": "attempt",
    "DURATION": "duration",
    "REASON": "reason",
}


@app.command
def submit(
    task_type: str,
    parameters: str = "{}",
    /,
    *,
    memory: str = "",
    gpus: int = 1,
    vendor: str = "",
    priority: str = "normal",
    timeout: float | None = None,
    retries: int | None = None,
    model: str = "",
    idempotency_key: str = "",
    wait: Annotated[bool, Parameter(negative="")] = False,
    json_: AsJson = False,
) -> None:
    """Submit a task.

    Parameters
    ----------
    task_type
        Which handler runs it, such as echo or sleep.
    parameters
        JSON for the handler.
    memory
        GPU memory to reserve on each device, such as 10GB; whole devices if not given.
    gpus
        How many devices; 0 for none.
    vendor
        Only devices of this vendor.
    priority
        low, normal, high, critical, or 0 to 100.
    timeout
        Seconds after which it is stopped.
    retries
        How often it is retried.
    model
        The model it needs.
    idempotency_key
        Submitting the same key again returns the same task.
    wait
        Wait until it has ended.
    json_
        Print JSON.
    """
    from gpu_orchestrator.cli.client import ask

    body: dict[str, Any] = {
        "task_type": task_type,
        "parameters": _json(parameters),
        "priority": int(priority) if priority.isdigit() else priority,
        "resources": {"gpus": gpus, "gpu_memory": memory, "vendor": vendor},
        "model_name": model,
        "idempotency_key": idempotency_key,
    }
    if timeout is not None:
        body["timeout"] = timeout
    if retries is not None:
        body["max_retries"] = retries
    answer = ask("POST", "/tasks", body=body)
    if wait:
        _wait(answer["task_id"], as_json=json_)
    else:
        _show(answer, [answer], as_json=json_)


@app.command
def get(task_id: str, /, *, json_: AsJson = False) -> None:
    """Show a task."""
    from gpu_orchestrator.cli.client import ask

    _show_one(ask("GET", f"/tasks/{task_id}"), as_json=json_)


@app.command
def wait(task_id: str, /, *, timeout: float = 600.0, json_: AsJson = False) -> None:
    """Wait until a task has ended and show it; exit with 1 if it did not complete."""
    _wait(task_id, as_json=json_, timeout_s=timeout)


@app.command(name="list")
def list_(
    *, status: str = "", worker: str = "", limit: int = 50, offset: int = 0, json_: AsJson = False
) -> None:
    """List tasks, newest first."""
    from gpu_orchestrator.cli.client import ask

    answer = ask("GET", "/tasks", status=status, worker_id=worker, limit=limit, offset=offset)
    _show(answer, answer["tasks"], as_json=json_)


@app.command
def cancel(task_id: str, /, *, json_: AsJson = False) -> None:
    """Cancel a task: at once if it waits; otherwise its worker is asked to stop it."""
    from gpu_orchestrator.cli.client import ask

    answer = ask("DELETE", f"/tasks/{task_id}")
    _show(answer, [answer], as_json=json_)


@app.command
def retry(task_id: str, /, *, json_: AsJson = False) -> None:
    """Queue a task again that ended without a result."""
    from gpu_orchestrator.cli.client import ask

    answer = ask("POST", f"/tasks/{task_id}/retry")
    _show(answer, [answer], as_json=json_)


@app.command
def explain(task_id: str, /, *, json_: AsJson = False) -> None:
    """Show why a task waits: every device, and why it cannot be used."""
    from gpu_orchestrator.cli.client import ask, show
    from gpu_orchestrator.cli.plain import lines

    answer = ask("GET", f"/tasks/{task_id}/explain")
    rows = [
        {**device, "worker": worker["worker_id"], "why": device["why"] or "; ".join(worker["why"]) or "fits"}
        for worker in answer["workers"]
        for device in worker["devices"]
    ]
    if not json_:
        print(lines(f"{answer['status']}: {answer['reason'] or 'goes to ' + str(answer['would_go_to'])}"))
    columns = {"WORKER": "worker", "DEVICE": "index", "MODEL": "model", "FREE": "memory_free", "WHY": "why"}
    show(answer, as_json=json_, columns=columns, rows=rows)


def _wait(task_id: str, *, as_json: bool, timeout_s: float = 600.0) -> None:
    from gpu_orchestrator.cli.client import ask

    answer = ask("GET", f"/tasks/{task_id}/wait", timeout=timeout_s)
    _show_one(answer, as_json=as_json)
    if answer["status"] != "completed":
        sys.exit(1)


def _show_one(answer: dict[str, Any], *, as_json: bool) -> None:
    from gpu_orchestrator.cli.plain import lines

    _show(answer, [answer], as_json=as_json)
    if not as_json and answer["result"] is not None:
        print(json.dumps(answer["result"], indent=2))
    if not as_json and answer["error"]:
        print(lines(f"{answer['error']['type']}: {answer['error']['message']}"))


def _show(answer: Any, rows: list[dict[str, Any]], *, as_json: bool) -> None:
    from gpu_orchestrator.cli.client import show

    columns = {
        name: field for name, field in COLUMNS.items() if any(field in row for row in rows) or not rows
    }
    show(answer, as_json=as_json, columns=columns, rows=rows)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        sys.exit(
            f"gpu-orchestrator: the parameters are not valid JSON: {error}; "
            "write for example '{\"seconds\": 1}'"
        )
