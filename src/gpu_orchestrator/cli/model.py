"""`gpu-orchestrator model list|show|add|remove|load|unload|rebalance|pin|unpin`."""

from datetime import UTC, datetime
from typing import Annotated, Literal

from cyclopts import App, Parameter

from gpu_orchestrator.cli import client, model_rows, output, parameters
from gpu_orchestrator.cli.options import HERE, AsJson, Server, whole

app = App(name="model", help="Declare models, and load, unload and pin them.")
Name = Annotated[str, Parameter(help="The model's name, as `model list` shows it.")]
Worker = Annotated[str, Parameter(name="--worker", metavar="NAME")]


@app.command(name="list")
def list_(*, json_: AsJson = False, server: Server = HERE) -> None:
    """List models: what they take, where they are loaded and pinned."""
    answer = client.ask(server, "GET", "/models")
    if json_:
        return output.show_json(answer)
    columns, rows = model_rows.table(answer["models"])
    return output.show_table(columns, rows)


@app.command
def show(model: Name, /, *, json_: AsJson = False, server: Server = HERE) -> None:
    """Show a model and its copies: how long they took to load, what they hold, when they were used."""
    answer = client.ask(server, "GET", f"/models/{client.part(model)}")
    if json_:
        return output.show_json(answer)
    output.show_card(model_rows.card(answer))
    if answer["copies"]:
        output.say("")
        columns, rows = model_rows.copies(answer["copies"], datetime.now(UTC))
        output.show_table(columns, rows)
    return None


@app.command
def add(
    model: Name,
    /,
    *,
    handler: str,
    memory: str = "",
    path: str = "",
    option: tuple[str, ...] = (),
    load_seconds: float = 0.0,
    gpus: Annotated[int, Parameter(converter=whole)] = 1,
    json_: AsJson = False,
    server: Server = HERE,
) -> None:
    """Declare a model, so that tasks may name it; or change what is declared.

    Parameters
    ----------
    handler
        The task type that loads it: what workers were started with as `--model NAME=module:Class`.
    memory
        What it takes on each of its devices, such as 16GB, until a worker has measured it.
    path
        Where its weights are on the workers, absolute or in their MODEL_CACHE_DIR.
    option
        `name=value` for the handler; or a JSON object, or `@FILE` with one. May be repeated.
    load_seconds
        How long a load takes, about, until a worker has measured it.
    gpus
        How many GPUs a request of OpenAI's routes gets; 0 for none.
    """
    body = {
        "handler": handler,
        "memory": memory,
        "path": path,
        "options": parameters.read(option),
        "load_seconds": load_seconds,
        "gpus": gpus,
    }
    answer = client.ask(server, "PUT", f"/models/{client.part(model)}", body=body)
    _say(answer, f"{model}: tasks of type {answer['handler']} may name it", as_json=json_)


@app.command
def remove(model: Name, /, *, json_: AsJson = False, server: Server = HERE) -> None:
    """Remove a model from the registry. Loaded copies stay until they are evicted."""
    answer = client.ask(server, "DELETE", f"/models/{client.part(model)}")
    _say(answer, f"{model} removed", as_json=json_)


@app.command
def load(
    model: Name,
    /,
    *,
    worker: Worker = "",
    pin: bool = False,
    gpus: Annotated[int, Parameter(converter=whole)] = 1,
    gpu_memory: str = "",
    json_: AsJson = False,
    server: Server = HERE,
) -> None:
    """Load a model before a task needs it.

    Parameters
    ----------
    worker
        The worker to load it on; by default the one that suits best.
    pin
        Never evict it there.
    gpus
        How many GPUs it takes; 0 for none.
    gpu_memory
        What it takes on each of them, if more than is known of it.
    """
    body = {
        "model_name": model,
        "worker_id": worker,
        "pin": pin,
        "gpus": gpus,
        "gpu_memory": gpu_memory,
    }
    answer = client.ask(server, "POST", "/models/assign", body=body)
    where = f" on {answer['worker_id']}" if answer["worker_id"] else ""
    _say(answer, f"loading {model}{where}: task {answer['task_id']}", as_json=json_)


@app.command
def unload(
    model: Name,
    /,
    *,
    worker: Worker = "",
    force: bool = False,
    json_: AsJson = False,
    server: Server = HERE,
) -> None:
    """Unload a model.

    Parameters
    ----------
    worker
        The worker to unload it from; by default all of them.
    force
        Also where a task uses it, which is retried, and where it is pinned.
    """
    body = {"model_name": model, "worker_id": worker, "force": force}
    answer = client.ask(server, "POST", "/models/unload", body=body)
    told = ", ".join(answer["workers"])
    _say(answer, f"unloading {model} from {told}" if told else f"{model} is not loaded", as_json=json_)


@app.command
def rebalance(
    *,
    strategy: Literal["memory_optimized", "load", "models"] = "memory_optimized",
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    force: Annotated[bool, Parameter(negative="")] = False,
    json_: AsJson = False,
    server: Server = HERE,
) -> None:
    """Move models from workers that have too much to workers with room: at most ten, each loaded there before
    it is unloaded here.

    Parameters
    ----------
    strategy
        What to even out: the memory that is held, the load, or the number of models.
    dry_run
        Only show what would move, and why.
    force
        Also models that a task uses, which is then retried, and pinned ones, whose pin moves along.
    """
    body = {"strategy": strategy, "dry_run": dry_run, "force": force}
    answer = client.ask(server, "POST", "/cluster/rebalance", body=body)
    if json_:
        return output.show_json(answer)
    if not answer["operations"]:
        return output.say("nothing to do: no worker has too much, or none has room")
    columns, rows = model_rows.moves(answer["operations"])
    output.show_table(columns, rows)
    return output.say(f"{answer['status']}; about {answer['estimated_duration']}")


@app.command
def pin(model: Name, /, *, worker: Worker = "*", json_: AsJson = False, server: Server = HERE) -> None:
    """Never evict a model where it is or will be loaded.

    Parameters
    ----------
    worker
        Only on this worker.
    """
    _pin(server, "pin", model, worker, as_json=json_)


@app.command
def unpin(model: Name, /, *, worker: Worker = "*", json_: AsJson = False, server: Server = HERE) -> None:
    """Let a model be evicted again.

    Parameters
    ----------
    worker
        Only on this worker.
    """
    _pin(server, "unpin", model, worker, as_json=json_)


def _pin(server: Server, how: str, model: str, worker: str, *, as_json: bool) -> None:
    answer = client.ask(server, "POST", f"/models/{how}", body={"model_name": model, "worker_id": worker})
    on = ", ".join(answer["pinned_on"]).replace("*", "all workers")
    _say(answer, f"{model} is pinned on {on}" if on else f"{model} is pinned nowhere", as_json=as_json)


def _say(answer: object, words: str, *, as_json: bool) -> None:
    if as_json:
        output.show_json(answer)
    else:
        output.say(words)
