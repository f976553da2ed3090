"""Builders for tests of the agent: devices, readings, looks, and an API server that records writes."""

from collections.abc import Iterable
from typing import Any

import msgspec

from gpu_orchestrator.adapters.gpus.gpu import Device, Process, Reading, Slice
from gpu_orchestrator.adapters.kube.transport.base import Answer, Request
from gpu_orchestrator.api.topology import Link
from gpu_orchestrator.api.wire import OwnerReference
from gpu_orchestrator.apps.agent.survey import Look
from tests.support.scripted_transport import Scripted, answer, refusal

NODE = "node-a"
OWNER = OwnerReference("v1", "Node", NODE, "uid-of-node-a")


def device(number: int = 0, uuid: str = "", mig: Slice | None = None, **more: Any) -> Device:
    return Device(
        index=number,
        uuid=uuid or f"GPU-{number}",
        vendor=more.pop("vendor", "nvidia"),
        model=more.pop("model", "NVIDIA H100 80GB HBM3"),
        memory_mib=81_920,
        driver_version="570.1",
        mig=mig,
        **more,
    )


def reading(uuid: str = "GPU-0", pids: Iterable[int] = (), **more: Any) -> Reading:
    return Reading(
        uuid=uuid,
        used_mib=more.pop("used_mib", 0),
        free_mib=81_920,
        processes=tuple(Process(pid, 100) for pid in pids),
        **more,
    )


def look(
    *devices: Device,
    readings: Iterable[Reading] = (),
    links: tuple[Link, ...] = (),
    pods: dict[int, str] | None = None,
) -> Look:
    """Return what is seen of these devices; those without a reading of their own are well."""
    given = {each.uuid: each for each in readings}
    seen = {each.uuid: given.get(each.uuid) or reading(each.uuid) for each in devices}
    return Look(devices, seen, links, pods=pods or {})


class Server(Scripted):
    """Accepts every write and remembers it. `away`: it cannot be reached; `refused`: answers by path."""

    def __init__(self) -> None:
        super().__init__()
        self.away: Exception | None = None
        self.refused: dict[str, list[Answer]] = {}
        self.found: dict[str, Any] = {}

    async def send(self, request: Request, *, timeout_s: float, renew: bool = False) -> Answer:
        if self.away is not None:
            raise self.away
        self.requests.append(request)
        path = request.target.partition("?")[0]
        if waiting := self.refused.get(path):
            return waiting.pop(0)
        if request.method == "GET":
            return answer(self.found[path]) if path in self.found else refusal(404, "NotFound")
        return answer({"metadata": {"name": "x", "resourceVersion": str(len(self.requests))}})

    def writes(self, word: str = "") -> list[Any]:
        """Return the bodies of all writes to paths with this word."""
        return [
            msgspec.json.decode(each.body or b"{}")
            for each in self.requests
            if each.method != "GET" and word in each.target
        ]
