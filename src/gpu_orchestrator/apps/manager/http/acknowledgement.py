"""With DURABILITY=strict: a change is acknowledged only once it is durable, and refused at once while no
change can be made durable.

Requests of workers are left alone: a worker's lease must not end because a replica is away. Their results are
acknowledged in `tasks/outcomes.py`.
"""

import contextlib

import structlog
from starlette.responses import Response
from starlette.types import Message, Scope, Send

from gpu_orchestrator.adapters.store.errors import Full, Loading, NotDurable, StoreError
from gpu_orchestrator.apps.manager import errors
from gpu_orchestrator.apps.manager.http.responses import error_response
from gpu_orchestrator.apps.manager.http.route_auth import ACKNOWLEDGED
from gpu_orchestrator.apps.manager.manager import Manager

log = structlog.get_logger()
HISTORY = "history"
"""In the state of a request: see `Database.begin`. None once its changes are durable."""


def store_refusal(error: Exception) -> Response:
    """Return the answer for an error of the store, without the store's address."""
    match error:
        case Full():
            text = "the store has no memory left; nothing was changed; retry later"
            return error_response(errors.StoreFull(text))
        case NotDurable(reason=reason):
            text = (
                f"the change is not durable yet and may be lost: {reason}; retry (with its idempotency_key)"
            )
        case Loading():
            text = f"{error.progress}; retry"
        case _:
            text = "the store does not answer; retry"
    return error_response(errors.Unavailable(text))


class DurableSend:
    """The `send` of one request that changes something: holds a success back until the change is durable, and
    sends a refusal in its place if it is not."""

    def __init__(self, manager: Manager, scope: Scope, send: Send) -> None:
        self._database, self._scope, self._send = manager.store.database, scope, send
        self._is_replaced = False

    async def begin(self) -> None:
        """Note what the store has written until now. Without an answer no change of this request will
        count."""
        self._scope["state"][HISTORY] = ""
        with contextlib.suppress(StoreError):
            self._scope["state"][HISTORY] = await self._database.begin()

    async def __call__(self, message: Message) -> None:
        if self._is_replaced:
            return
        if message["type"] == "http.response.start" and message["status"] < 400 and self._acknowledges():
            try:
                await self._database.durable(self._scope["state"][HISTORY])
            except StoreError as error:
                log.warning("a change is not acknowledged", error=str(error))
                self._is_replaced = True
                await store_refusal(error)(self._scope, _receive_nothing, self._send)
                return
        await self._send(message)

    def _acknowledges(self) -> bool:
        state = self._scope["state"]
        guard = state.get("route_guard")
        return state[HISTORY] is not None and guard is not None and guard.needs in ACKNOWLEDGED


async def settle(manager: Manager, scope: Scope) -> None:
    """Wait until what this request has changed is durable, before it waits for something else: a failover
    later is then no reason to doubt it."""
    if manager.store.database.strict:
        await manager.store.database.durable(scope["state"][HISTORY])
        scope["state"][HISTORY] = None


async def _receive_nothing() -> Message:
    return {"type": "http.disconnect"}
