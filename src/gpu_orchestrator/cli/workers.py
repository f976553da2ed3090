"""`gpu-orchestrator worker list|drain|cordon|uncordon`, beside the command that runs a worker; and
`status`."""

from typing import Annotated, Any

from cyclopts import Parameter

from gpu_orchestrator.cli.worker import app

AsJson = Annotated[bool, Parameter(name="--json", negative="")]


@app.command(name="list")
def list_(*, status: str = "", gpu_type: str = "", json_: AsJson = False) -> None:
    """List workers and what they have."""
    from gpu_orchestrator.cli.client import ask, show

    answer = ask("GET", "/workers", status=status, gpu_type=gpu_type)
    columns = {
        "WORKER": "worker_id",
        "STATUS": "status",
        "TASKS": "tasks",
        "GPUS": "gpus",
        "MEMORY": "memory",
    }
    show(answer, as_json=json_, columns=columns, rows=[_row(each) for each in answer["workers"]])


@app.command
def drain(worker: str, /, *, json_: AsJson = False) -> None:
    """Assign no new tasks to a worker and let it finish what runs."""
    _say(worker, "drain", as_json=json_)


@app.command
def cordon(worker: str, /, *, json_: AsJson = False) -> None:
    """Assign no new tasks to a worker."""
    _say(worker, "cordon", as_json=json_)


@app.command
def uncordon(worker: str, /, *, json_: AsJson = False) -> None:
    """Let a worker take tasks again."""
    _say(worker, "uncordon", as_json=json_)


def status(*, json_: AsJson = False) -> None:
    """Show the state of the cluster."""
    from gpu_orchestrator.cli.client import ask, show

    answer = ask("GET", "/cluster/status")
    columns = {
        "STATUS": "status",
        "WORKERS": "active_workers",
        "QUEUED": "queued_tasks",
        "RUNNING": "running_tasks",
        "MEMORY": "total_memory",
        "FREE": "available_memory",
        "UP": "uptime",
    }
    show(answer, as_json=json_, columns=columns, rows=[answer])


def _say(worker: str, word: str, *, as_json: bool) -> None:
    from gpu_orchestrator.cli.client import ask, show

    answer = ask("POST", f"/workers/{worker}/{word}")
    show(answer, as_json=as_json, columns={"WORKER": "worker_id", "STATUS": "status"}, rows=[answer])


def _row(worker: dict[str, Any]) -> dict[str, Any]:
    models = sorted({gpu["model"] for gpu in worker["gpu_info"]})
    used = sum(gpu["memory_used_bytes"] for gpu in worker["gpu_info"]) / 2**30
    total = sum(gpu["memory_total_bytes"] for gpu in worker["gpu_info"]) / 2**30
    return {
        **worker,
        "tasks": f"{worker['current_tasks']}/{worker['max_concurrent']}",
        "gpus": f"{len(worker['gpu_info'])} × {', '.join(models)}" if models else "none",
        "memory": f"{used:.1f}/{total:.1f} GB used",
    }
