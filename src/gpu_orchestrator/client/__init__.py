"""The Python interface of the cluster manager: submit tasks, wait for them, read their results.

Starts quickly and needs no part of the server. Read the modules in this order:

  errors          what can go wrong, as a tree
  where           which server, and with which key; the command line asks the same
  tasks           calls with their options, handles, the state of a task
  functions       `@task`; what it knows of a function is in `api/functions.py`
  calls           calls from what callers write
  steps           requests, pauses and streams as values
  server_sent     events from the bytes of a stream
  conversation    all that is said between client and server, written once, as generators of steps
  schedules       what is said about schedules
  scheduling      `client.schedules`, blocking and awaited
  streaming       how the partial results of a task are followed
  transfer        how files are sent and received
  dial            opens connections for the blocking client and the commands
  blocking        `Client`: performs the steps, and blocks
  awaiting        `AsyncClient`: performs the same steps, and awaits
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_orchestrator.api.files import File
    from gpu_orchestrator.client.awaiting import AsyncClient, AsyncHandle, AsyncStreamHandle
    from gpu_orchestrator.client.blocking import Client, Handle, StreamHandle
    from gpu_orchestrator.client.errors import (
        BadArguments,
        BadPlace,
        BadResult,
        Busy,
        ClientError,
        NotAllowed,
        NotFound,
        Refused,
        StreamRestarted,
        TaskCancelled,
        TaskDead,
        TaskFailed,
        TimedOut,
        Unreachable,
        ValuesMissed,
    )
    from gpu_orchestrator.client.functions import StreamFunction, TaskFunction, task
    from gpu_orchestrator.client.schedules import ScheduleInfo
    from gpu_orchestrator.client.scheduling import AsyncSchedules, Schedules
    from gpu_orchestrator.client.tasks import Call, Cron, Event, Explanation, Gang, Options, TaskInfo

__all__ = (
    "AsyncClient",
    "AsyncHandle",
    "AsyncSchedules",
    "AsyncStreamHandle",
    "BadArguments",
    "BadPlace",
    "BadResult",
    "Busy",
    "Call",
    "Client",
    "ClientError",
    "Cron",
    "Event",
    "Explanation",
    "File",
    "Gang",
    "Handle",
    "NotAllowed",
    "NotFound",
    "Options",
    "Refused",
    "ScheduleInfo",
    "Schedules",
    "StreamFunction",
    "StreamHandle",
    "StreamRestarted",
    "TaskCancelled",
    "TaskDead",
    "TaskFailed",
    "TaskFunction",
    "TaskInfo",
    "TimedOut",
    "Unreachable",
    "ValuesMissed",
    "task",
)
_PLACES = {
    "awaiting": ("AsyncClient", "AsyncHandle", "AsyncStreamHandle"),
    "blocking": ("Client", "Handle", "StreamHandle"),
    "functions": ("StreamFunction", "TaskFunction", "task"),
    "schedules": ("ScheduleInfo",),
    "scheduling": ("AsyncSchedules", "Schedules"),
    "tasks": ("Call", "Cron", "Event", "Explanation", "Gang", "Options", "TaskInfo"),
    "transfer": ("File",),
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load what is used: the commands need little of this, and `Client` nothing of `AsyncClient`."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF.get(name, 'errors')}"), name)
