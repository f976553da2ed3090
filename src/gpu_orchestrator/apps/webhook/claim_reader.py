"""Find the claim that a pod names: in the watch or, if it is not there yet, on the API server.

A user applies claim and pod in one file, so the pod may come before the watch has shown the claim.
"""

import asyncio

from gpu_orchestrator.adapters.kube import errors
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.api.gpuclaim import GPU_CLAIMS, GpuClaim
from gpu_orchestrator.apps.webhook.metrics import Metrics

AT_ONCE = 16
"""Reads under way: callers that name claims which do not exist must not flood the API server through us."""


class CannotRead(Exception):
    """The API server did not answer; the message says why."""


class ClaimReader:
    def __init__(self, client: Client, known: Store[GpuClaim], metrics: Metrics, *, limit_s: float) -> None:
        self._client, self._known, self._metrics = client.with_limits(timeout_s=limit_s), known, metrics
        self._limit_s = limit_s
        self._free = asyncio.Semaphore(AT_ONCE)

    async def find(self, namespace: str, name: str) -> GpuClaim | None:
        """Return the claim; None if it does not exist."""
        return self._known.get(f"{namespace}/{name}") or await self._read(namespace, name)

    async def _read(self, namespace: str, name: str) -> GpuClaim | None:
        self._metrics.claim_reads.inc()
        try:
            async with asyncio.timeout(self._limit_s), self._free:
                return await self._client.get(GPU_CLAIMS, name, namespace)
        except errors.NotFound:
            return None
        except TimeoutError as error:
            raise CannotRead(f"the API server did not answer within {self._limit_s:g} s") from error
        except errors.KubeError as error:
            raise CannotRead(str(error)) from error
