"""The webhook's application with a few claims, without watches and without a server."""

from dataclasses import dataclass, field

import msgspec
from starlette.applications import Starlette

from gpu_orchestrator.api.devices import DeviceWish
from gpu_orchestrator.api.gpuclaim import GpuClaim
from gpu_orchestrator.api.gpuqueue import GpuQueue
from gpu_orchestrator.apps.webhook import app
from gpu_orchestrator.apps.webhook.app import Probes
from gpu_orchestrator.apps.webhook.claim_reader import CannotRead
from gpu_orchestrator.apps.webhook.metrics import Metrics
from gpu_orchestrator.apps.webhook.reviewer import Reviewer
from tests.support.scheduler_stage import claim

CLAIMS = {
    "default/train": claim("train", 2),
    "default/memory": claim("memory", exclusivity="Shared", memoryMiB=10_000),
    "default/slice": claim("slice", exclusivity="MIG", migProfile="1g.10gb"),
}


@dataclass
class Site:
    metrics: Metrics = field(default_factory=Metrics)
    is_reachable: bool = True
    is_draining: bool = False
    uses_mps: bool = False
    queues: tuple[GpuQueue, ...] = ()

    @property
    def reviewer(self) -> Reviewer:
        return Reviewer(self._find, self._largest_mib, self._queues, uses_mps=self.uses_mps)

    def app(self) -> Starlette:
        return app.build(self.reviewer, self.metrics, Probes(lambda: "", lambda: self.is_draining))

    def count(self, path: str, result: str) -> float:
        labels = {"path": path, "result": result}
        return self.metrics.registry.get_sample_value("gpu_webhook_requests_total", labels) or 0.0

    async def _find(self, namespace: str, name: str) -> GpuClaim | None:
        if not self.is_reachable:
            raise CannotRead("connection refused")
        found = CLAIMS.get(f"{namespace}/{name}")
        return msgspec.convert(found, GpuClaim) if found else None

    async def _queues(self) -> list[GpuQueue]:
        if not self.is_reachable:
            raise CannotRead("connection refused")
        return list(self.queues)

    def _largest_mib(self, wish: DeviceWish) -> int:
        return 80_000 if wish.model in ("", "H100") else 0
