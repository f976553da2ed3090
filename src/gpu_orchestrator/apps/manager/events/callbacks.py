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
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from time import time
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from gpu_orchestrator import __version__
from gpu_orchestrator.adapters.background import BackgroundTasks, wait_until_set
from gpu_orchestrator.adapters.outbound.addresses import Allowed
from gpu_orchestrator.adapters.store.callbacks import Callbacks, Due, Take
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.tasks import Row
from gpu_orchestrator.api import task
from gpu_orchestrator.apps.manager import views
from gpu_orchestrator.apps.manager.events.signing import MARK
from gpu_orchestrator.apps.manager.metrics import Metrics
from gpu_orchestrator.engine import backoff

if TYPE_CHECKING:
    import aiohttp

log = structlog.get_logger()

POLL_S = 0.5
AT_ONCE, AT_ONCE_PER_HOST = 50, 8
"""Deliveries under way, and of them to one receiver: one that does not answer must not delay the others."""
HOST_PAUSE_MS = 2000
"""A callback whose receiver already has as many deliveries is looked at again after this."""
MOST_RESULTS = 8
"""Deliveries under way with a result that is read from a file or a bucket: each may be large."""
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
    whole: Callable[[Row], Awaitable[Row]]
    """Returns a row with its result, if that is not too large to be shown."""
    first_wait_s: float = 1.0
    resolver: Any = None


class CallbackSender:
    """Delivers callbacks while `leads` returns True."""

    def __init__(
        self, store: Callbacks, config: CallbackConfig, metrics: Metrics, leads: Callable[[], bool]
    ) -> None:
        self._store, self._config, self._metrics, self._leads = store, config, metrics, leads
        self._under_way: Counter[str] = Counter()
        self._ended = asyncio.Event()
        self._deliveries = BackgroundTasks()
        self._results = asyncio.Semaphore(MOST_RESULTS)

    async def run(self) -> None:
        """Deliver due callbacks, forever. Return at once if callbacks are off; due ones then wait."""
        if not self._config.allowed.hosts:
            return
        from gpu_orchestrator.adapters.outbound import requests  # imported on first use, because it is large

        async with requests.session(
            self._config.allowed, timeout_s=TIMEOUT_S, resolver=self._config.resolver
        ) as http:
            try:
                while True:
                    self._ended.clear()
                    if not await self._start_due(http):
                        await asyncio.sleep(POLL_S)
                    elif self._under_way.total() >= AT_ONCE:
                        await wait_until_set(self._ended, POLL_S)
            finally:
                self._deliveries.cancel()
                await self._deliveries.finish()

    async def _start_due(self, http: "aiohttp.ClientSession") -> bool:
        """Start to deliver callbacks that are due; return True if more may be due."""
        if not self._leads():
            return False
        left = {host: AT_ONCE_PER_HOST - count for host, count in self._under_way.items()}
        take = Take(AT_ONCE - self._under_way.total(), TAKEN_MS, left, AT_ONCE_PER_HOST, HOST_PAUSE_MS)
        try:
            found, more = await self._take_durable(take)
        except StoreError:
            return False
        except Exception:
            log.exception("delivering callbacks failed")
            return False
        for due in found:
            host = _host(task.decode(due.row["spec"]).callback_url)
            self._under_way[host] += 1
            self._deliveries.start(self._deliver_one(http, due, host))
        return more

    async def _deliver_one(self, http: "aiohttp.ClientSession", due: Due, host: str) -> None:
        try:
            await self._deliver(http, due)
        except StoreError:
            pass  # it is due again after TAKEN_MS
        except Exception:
            log.exception("delivering a callback failed", task_id=due.task)
        finally:
            self._under_way[host] -= 1
            if not self._under_way[host]:
                del self._under_way[host]
            self._ended.set()

    async def _take_durable(self, take: Take) -> tuple[list[Due], bool]:
        """Take due callbacks. With DURABILITY=strict, nobody is told of an end that a failover could undo."""
        history = await self._store.begin()
        found, more = await self._store.take(take)
        if found:
            await self._store.durable(history)
        return found, more

    async def _deliver(self, http: "aiohttp.ClientSession", due: Due) -> None:
        url = task.decode(due.row["spec"]).callback_url
        if not url:
            return await self._store.delivered(due)  # nothing to send
        try:
            if due.row.get("result_at"):
                async with self._results:
                    await self._post(http, url, replace(due, row=await self._config.whole(due.row)))
            else:
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


def _host(url: str) -> str:
    """Return host and port as `callbacks.lua` finds them."""
    found = re.search(r"^\w+://([^/\"?#]*)", url)
    return found[1].lower() if found else ""


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
