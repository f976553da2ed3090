"""Why a task waits whose model decides about it, in words. Pure; `tasks/waiting.py` and `explain` show it."""

from collections.abc import Iterable
from difflib import get_close_matches

from gpu_orchestrator.apps.manager.fleet.nodes import WorkerState

MOST_NAMED = 3


def why_it_waits(model: str, workers: Iterable[WorkerState]) -> str:
    """Return what a task of this model waits for if there is room for it: the scheduler chose to wait for a
    copy, because that is quicker than loading another."""
    here = [
        (worker, each) for worker in workers if worker.online for each in worker.copies if each.model == model
    ]
    loaded = sorted({worker.hello.name for worker, each in here if each.is_loaded})
    loading = sorted({worker.hello.name for worker, each in here if not each.is_loaded})
    if loaded:
        return (
            f"waits for the copy of model {model!r} on {_named(loaded)}, which other tasks use or use first"
        )
    if loading:
        return f"waits for model {model!r}, which {_named(loading)} loads now"
    return f"waits for its turn to load model {model!r}: tasks of loaded models may go before it"


def unknown(model: str, handler: str, known: list[str]) -> str:
    """Return the refusal of a model that nobody declared, with those that are known."""
    close = get_close_matches(model, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    shown = ", ".join(known[:20]) + (" …" if len(known) > 20 else "")
    return (
        f"unknown model {model!r}{hint} known to {handler!r}: {shown}; an administrator declares others with "
        "`gpu-orchestrator model add` or PUT /models/NAME"
    )


def _named(workers: list[str]) -> str:
    more = f" and {len(workers) - MOST_NAMED} more" if len(workers) > MOST_NAMED else ""
    return ", ".join(workers[:MOST_NAMED]) + more
