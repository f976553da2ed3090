"""The webhook ends if nobody keeps its certificate any more: it would expire unseen."""

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any

import pytest

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.informer.watch import Watch
from gpu_orchestrator.apps.webhook.metrics import Metrics
from gpu_orchestrator.apps.webhook.settings import Settings
from gpu_orchestrator.apps.webhook.webhook import Webhook
from tests.support.scripted_transport import Scripted


class Unkept:
    """A certificate that is never ready. `error` ends its keeping, if there is one."""

    watches: Sequence[Watch[Any]] = ()
    unready = "not ready"

    def __init__(self, error: Exception | None = None) -> None:
        self._error, self.is_cancelled = error, False

    async def ready(self) -> ssl.SSLContext:
        await asyncio.Event().wait()
        raise AssertionError

    async def keep(self) -> None:
        if self._error:
            raise self._error
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise


def webhook(certificate: Unkept) -> Webhook:
    return Webhook(Client(Scripted()), Settings(), certificate, Metrics())


async def test_error_of_the_keeper_ends_the_webhook() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(webhook(Unkept(OSError("no such file"))).work(), 60)
    assert caught.group_contains(OSError, match="no such file")


async def test_webhook_that_is_stopped_before_it_has_a_certificate_ends() -> None:
    certificate = Unkept()
    made = webhook(certificate)
    working = asyncio.create_task(made.work())
    await asyncio.sleep(0)
    made.stop()
    await asyncio.wait_for(working, 60)
    assert certificate.is_cancelled
