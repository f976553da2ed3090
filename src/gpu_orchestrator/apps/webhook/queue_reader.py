"""List the GpuQueues when one of them is checked. That is rare, so none is kept in memory."""

import asyncio

from gpu_orchestrator.adapters.kube import errors
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.api.gpuqueue import GPU_QUEUES, GpuQueue
from gpu_orchestrator.apps.webhook.claim_reader import CannotRead

AT_ONCE = 2
"""Lists under way: who creates a thousand queues must not fill the memory."""


class QueueReader:
    def __init__(self, client: Client, *, limit_s: float) -> None:
        self._client, self._limit_s = client.with_limits(timeout_s=limit_s), limit_s
        self._free = asyncio.Semaphore(AT_ONCE)

    async def all(self) -> list[GpuQueue]:
        """Return all queues as the API server has them."""
        try:
            async with asyncio.timeout(self._limit_s), self._free:
                return list((await self._client.list(GPU_QUEUES, version="0")).items)
        except TimeoutError as error:
            raise CannotRead(f"the API server did not answer within {self._limit_s:g} s") from error
        except errors.KubeError as error:
            raise CannotRead(str(error)) from error
