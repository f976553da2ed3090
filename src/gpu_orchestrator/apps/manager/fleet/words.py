"""Say the core's refusals in the manager's words: workers instead of nodes, task types instead of selectors,
memory as users write it.

Pure. Submissions, lists and `explain` call it, so all of them give the same reasons.
"""

import re
from collections.abc import Iterable, Iterator

from gpu_orchestrator.api.units import show_memory
from gpu_orchestrator.apps.manager.fleet.nodes import GANGS_LABEL, HANDLER_LABEL, NO_POOL, POOL_LABEL
from gpu_orchestrator.core.answer import Refusal, singular

OPTIONS = {"python": "--function", "http": "--upstream", "command": "--allow-command"}
"""With what a worker must be started to run a task type that is off by default."""


def option_for(task_type: str) -> str:
    """Return with what a worker must be started to run a task type; empty if nothing is known to help. The
    name of a function has dots."""
    module = task_type.rpartition(".")[0]
    return OPTIONS.get(task_type, f"--app {module}" if module else "")


_MIB = re.compile(r"(\d+) MiB")
_SELECTOR = re.compile(
    r"^(?:do|does) not match the selector "
    rf"(?:{re.escape(HANDLER_LABEL)}(?P<handler>.+?)=true(?:,|$))?"
    rf"(?:{re.escape(POOL_LABEL)}=(?P<pool>[^,]*)(?:,|$))?"
    rf"(?P<gangs>{re.escape(GANGS_LABEL)}=true(?:,|$))?(?P<labels>.*)$"
)
_AFFINITY = re.compile(r"^(?:do|does) not match the node affinity$")
_SLOTS = re.compile(r"^(?:have|has) (?:too little|no) slots$|^lacks \d+ slots \(.*\)$")
_KIND = re.compile(r"^has (?:no (?:\S+ )?GPU(?: of .*)?|fewer than \d+ healthy GPUs)$")
_FREE = re.compile(r"^lacks \d+ free GPU")
NO_GPU = "have no GPU"
"""What the core says of workers without any device."""


def message(refusal: Refusal) -> str:
    """Return the refusal as one sentence: `0/2 workers fit: 1 has no GPU of 900GB, 1 is offline`."""
    if refusal.error:
        return f"0/{refusal.nodes} workers fit: {refusal.error}"
    if not refusal.nodes:
        return "0/0 workers fit: no worker is there"
    return f"0/{refusal.nodes} workers fit: {', '.join(reasons(refusal))}"


def why_it_waits(refusal: Refusal) -> str:
    """Return the refusal of a task that waits, with what to do if none of the workers can ever take it."""
    return f"{message(refusal)}{_advice(refusal)}"


def needs_another_worker(refusal: Refusal) -> bool:
    """Return True if a task can wait forever, unless another worker joins."""
    return refusal.never and not refusal.error


def _advice(refusal: Refusal) -> str:
    if not needs_another_worker(refusal):
        return ""
    if not refusal.nodes:
        return "; start one with `gpu-orchestrator worker`"
    if any(text == NO_GPU for text, _ in refusal.reasons):
        return "; start a worker on a machine with a GPU, or one with --simulate 4 to try things out"
    return "; none of them ever can: start a worker that can, or cancel the task"


def reasons(refusal: Refusal) -> list[str]:
    """Return the workers counted by reason, as in `2 are cordoned`."""
    return [f"{count} {_reason(text, one=count == 1)}" for text, count in refusal.reasons]


def nearest(refusal: Refusal) -> str:
    """Return the worker that lacks least, and what it lacks; empty if there is none."""
    miss = refusal.nearest
    return f"{miss.node} {' and '.join(lacks(miss.lacks))}" if miss else ""


def lacks(found: Iterable[str]) -> list[str]:
    """Return what one worker lacks. Without a device of the right kind it has no free one either: that is not
    said twice."""
    said = list(found)
    if any(_KIND.match(each) for each in said):
        said = [each for each in said if not _FREE.match(each)]
    return [_reason(each, one=True) for each in said]


def _reason(text: str, *, one: bool) -> str:
    """Return a reason of the core for one worker or for several."""
    be, it = ("is", "it") if one else ("are", "they")
    if selector := _SELECTOR.match(text):
        return " and ".join(_misses(selector, one=one))
    if _SLOTS.match(text):
        return f"{be} running as many tasks as {it} may"
    if _AFFINITY.match(text):
        return f"{be} avoided, because the task died there"
    if text == "not ready":
        return f"{be} offline"
    return _MIB.sub(lambda found: show_memory(int(found[1])), singular(text) if one else text)


def _misses(selector: re.Match[str], *, one: bool) -> Iterator[str]:
    """Yield what the worker is not: of this task type, in this pool, with these labels."""
    be, do = ("is", "does") if one else ("are", "do")
    if name := selector["handler"]:
        how = f" (start {'it' if one else 'one'} with {option})" if (option := option_for(name)) else ""
        yield f"{do} not run {name} tasks{how}"
    if pool := selector["pool"]:
        yield f"{be} in a pool, and the task names none" if pool == NO_POOL else f"{be} not in pool {pool}"
    if selector["gangs"]:
        yield f"{be} of a version that knows no gangs"
    if labels := selector["labels"]:
        yield f"{do} not have the label{'s' if ',' in labels else ''} {labels}"
