"""`gpu-orchestrator worker list|show|drain|cordon|uncordon|restart|remove`, beside the command that runs a
worker; and `status`."""

from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import Parameter

from gpu_orchestrator.cli import client, output, worker_rows
from gpu_orchestrator.cli.options import HERE, AsJson, InUtc, Server, whole
from gpu_orchestrator.cli.worker import app

Name = Annotated[str, Parameter(help="The worker's name, as `worker list` shows it.")]
Device = Annotated[
    int | None,
    Parameter(name="--device", metavar="N", help="Only this device of the worker.", converter=whole),
]


@app.command(name="list")
def list_(
    *,
    status: Annotated[str, Parameter(metavar="STATE")] = "",
    gpu_type: Annotated[str, Parameter(metavar="MODEL")] = "",
    json_: AsJson = False,
    server: Server = HERE,
) -> None:
    """List workers and what they have.

    Parameters
    ----------
    status
        Only in this state: online, busy, cordoned, draining, resting, suspect or offline.
    gpu_type
        Only with a GPU whose model has this in its name, such as L4.
    """
    answer = client.ask(server, "GET", "/workers", query={"status": status, "gpu_type": gpu_type})
    if json_:
        return output.show_json(answer)
    columns, rows = worker_rows.table(answer["workers"], datetime.now(UTC))
    return output.show_table(columns, rows)


@app.command
def show(worker: Name, /, *, json_: AsJson = False, utc: InUtc = False, server: Server = HERE) -> None:
    """Show a worker: its devices with temperature, memory and cordons, its labels and task types."""
    answer = client.ask(server, "GET", f"/workers/{client.part(worker)}")
    if json_:
        return output.show_json(answer)
    output.show_card(worker_rows.card(answer, datetime.now(UTC), UTC if utc else None))
    if answer["gpu_info"]:
        output.say("")
        columns, rows = worker_rows.devices(answer["gpu_info"])
        output.show_table(columns, rows)
    return None


@app.command
def drain(worker: Name, /, *, json_: AsJson = False, server: Server = HERE) -> None:
    """Assign no new tasks to a worker and let it finish what runs. `uncordon` ends it."""
    _say(server, "POST", f"/workers/{client.part(worker)}/drain", as_json=json_)


@app.command
def cordon(worker: Name, /, *, device: Device = None, json_: AsJson = False, server: Server = HERE) -> None:
    """Assign no new tasks to a worker, or to one of its devices. What runs there goes on."""
    _say(server, "POST", f"/workers/{client.part(worker)}{_device(device)}/cordon", as_json=json_)


@app.command
def uncordon(worker: Name, /, *, device: Device = None, json_: AsJson = False, server: Server = HERE) -> None:
    """Let a worker, or one of its devices, take tasks again."""
    _say(server, "POST", f"/workers/{client.part(worker)}{_device(device)}/uncordon", as_json=json_)


@app.command
def restart(worker: Name, /, *, json_: AsJson = False, server: Server = HERE) -> None:
    """Let a worker finish what runs and exit; its service manager starts it again."""
    _say(server, "POST", f"/workers/{client.part(worker)}/restart", as_json=json_)


@app.command
def remove(
    worker: Name,
    /,
    *,
    now: Annotated[bool, Parameter(name="--now")] = False,
    json_: AsJson = False,
    server: Server = HERE,
) -> None:
    """Remove a worker: it finishes its tasks and leaves.

    Parameters
    ----------
    now
        Do not wait for its tasks: they are queued again at once.
    """
    query = {"drain": "false"} if now else {}
    _say(server, "DELETE", f"/workers/{client.part(worker)}", as_json=json_, query=query)


def status(*, json_: AsJson = False, server: Server = HERE) -> None:
    """Show the state of the cluster."""
    answer = client.ask(server, "GET", "/cluster/status")
    if json_:
        return output.show_json(answer)
    return output.show_card(worker_rows.status(answer))


def _device(index: int | None) -> str:
    return "" if index is None else f"/devices/{index}"


def _say(
    server: Server, method: str, path: str, *, as_json: bool, query: dict[str, Any] | None = None
) -> None:
    answer = client.ask(server, method, path, query=query or {})
    if as_json:
        return output.show_json(answer)
    return output.show_table(
        [worker_rows.WORKER, worker_rows.STATUS], [[answer["worker_id"], answer["status"]]]
    )
