"""Send callbacks when tasks end: at least once, signed, and retried until the receiver accepts them.

Only the leader's process delivers. If it stops with callbacks that it has taken from the store but not
delivered, they are due again for the next leader. Bodies and signatures follow
https://www.standardwebhooks.com, so that receivers can use its libraries.
"""

import asyncio
import base64
import contextlib
import hmac
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from time import time
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from gpu_orchestrator import __version__
from gpu_orchestrator.adapters.outbound.addresses import Allowed
from gpu_orchestrator.adapters.store.callbacks import Callbacks, Due
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.api import task
from gpu_orchestrator.apps.manager import views
from gpu_orchestrator.apps.manager.events.signing import MARK
from gpu_orchestrator.apps.manager.metrics import Metrics
from gpu_orchestrator.engine import backoff

if TYPE_CHECKING:
    import aiohttp

log = structlog.get_logger()

POLL_S = 0.5
MAX_BATCH = 50
TIMEOUT_S = 10.0
TAKEN_MS = 60_000
"""A callback that was taken and neither delivered nor put back within this time is due again."""
MAX_TRIES = 15
LONGEST_WAIT_S, WAIT_JITTER = 3600.0, 0.5
GONE = 410
_encode = msgspec.json.Encoder().encode


class NotAccepted(Exception):
    """The receiver did not accept the callback; the message is its answer. It is retried."""


class ReceiverGone(Exception):
    """The receiver will never accept the callback. It is not retried."""


@dataclass(frozen=True, slots=True)
class CallbackConfig:
    """How to sign and where to deliver. `secret_of` returns the secret of an owner."""

    secret_of: Callable[[str], Awaitable[str]]
    allowed: Allowed
    first_wait_s: float = 1.0
    resolver: Any = None


class CallbackSender:
    """Delivers callbacks while `leads` returns True."""

    def __init__(
        self, store: Callbacks, config: CallbackConfig, metrics: Metrics, leads: Callable[[], bool]
    ) -> None:
        self._store, self._config, self._metrics, self._leads = store, config, metrics, leads

    async def run(self) -> None:
        """Deliver due callbacks, forever. Return at once if callbacks are off; due ones then wait."""
        if not self._config.allowed.hosts:
            return
        from gpu_orchestrator.adapters.outbound import requests  # imported on first use, because it is large

        async with requests.session(
            self._config.allowed, timeout_s=TIMEOUT_S, resolver=self._config.resolver
        ) as http:
            while True:
                if await self._deliver_due(http) < MAX_BATCH:
                    await asyncio.sleep(POLL_S)

    async def _deliver_due(self, http: "aiohttp.ClientSession") -> int:
        """Deliver one batch and return how many callbacks were due."""
        try:
            found = await self._take_durable() if self._leads() else []
            await asyncio.gather(*(self._deliver(http, each) for each in found))
            return len(found)
        except StoreError:
            return 0
        except Exception:
            log.exception("delivering callbacks failed")
            return 0

    async def _take_durable(self) -> list[Due]:
        """Take due callbacks. With DURABILITY=strict, nobody is told of an end that a failover could undo."""
        history = await self._store.begin()
        found = await self._store.take(MAX_BATCH, TAKEN_MS)
        if found:
            await self._store.durable(history)
        return found

    async def _deliver(self, http: "aiohttp.ClientSession", due: Due) -> None:
        url = task.decode(due.row["spec"]).callback_url
        if not url:
            return await self._store.delivered(due)  # nothing to send
        try:
            await self._post(http, url, due)
        except asyncio.CancelledError:
            with contextlib.suppress(StoreError):  # then it is due again after TAKEN_MS
                await self._store.again(due, "the server shut down during the delivery", 0)
            raise
        except ReceiverGone as error:
            return await self._give_up(due, str(error))
        except Exception as error:  # any error is retried and shown in the task's row
            if due.tries + 1 >= MAX_TRIES:
                return await self._give_up(due, f"{MAX_TRIES} tries failed; the last: {_text(error)}")
            self._metrics.callbacks.labels("retried").inc()
            return await self._store.again(due, _text(error), self._wait_ms(due.tries))
        self._metrics.callbacks.labels("delivered").inc()
        return await self._store.delivered(due)

    async def _post(self, http: "aiohttp.ClientSession", url: str, due: Due) -> None:
        from gpu_orchestrator.adapters.outbound import requests

        checked = requests.check_url(url, self._config.allowed)
        body, secret = payload(due), await self._config.secret_of(due.row.get("tenant", ""))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"gpu-orchestrator/{__version__}",
            "X-Correlation-ID": due.row.get("correlation", ""),
            **signed(secret, message_id(due), int(time()), body),
        }
        async with http.post(checked, data=body, headers=headers, allow_redirects=False) as answer:
            if answer.status == GONE:
                raise ReceiverGone("the receiver answered 410 Gone")
            if 300 <= answer.status < 400:
                raise NotAccepted(f"the receiver answered {answer.status}; redirects are not followed")
            if not 200 <= answer.status < 300:
                raise NotAccepted(f"the receiver answered {answer.status}")

    async def _give_up(self, due: Due, reason: str) -> None:
        self._metrics.callbacks.labels("given up").inc()
        log.warning("a callback was given up", task_id=due.task, reason=reason)
        await self._store.give_up(due, reason)

    def _wait_ms(self, tries: int) -> int:
        """Return the delay before the next try: doubled for each try, with jitter."""
        longest_s = backoff.delay_s(tries, base_s=self._config.first_wait_s, cap_s=LONGEST_WAIT_S)
        return int(1000 * backoff.jittered(longest_s, WAIT_JITTER, random))


def payload(due: Due) -> bytes:
    row = due.row
    return _encode(
        {
            "type": f"task.{row['state']}",
            "timestamp": views.when(row.get("finished")),
            "data": views.task_status(due.task, row),
        }
    )


def message_id(due: Due) -> str:
    """Return the id of the message, the same for every try, so that the receiver can detect duplicates."""
    return f"{due.task}.{due.row.get('finished', '0')}"


def signed(secret: str, name: str, at_s: int, body: bytes) -> dict[str, str]:
    known = secret.removeprefix(MARK)
    key = base64.b64decode(known) if known != secret else secret.encode()
    mac = hmac.new(key, b"%b.%d.%b" % (name.encode(), at_s, body), sha256).digest()
    return {
        "webhook-id": name,
        "webhook-timestamp": str(at_s),
        "webhook-signature": f"v1,{base64.b64encode(mac).decode()}",
    }


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
