"""What the agent remembers from look to look: ids, conditions, and devices that are listed no more. Pure.

It starts from the agent's own last report, so that a restart changes neither an id nor a verdict, and forgets
no relapse.
"""

from dataclasses import dataclass, field
from datetime import datetime

from gpu_orchestrator.api.gpunodestatus import GpuNodeStatus, NodeDevice
from gpu_orchestrator.apps.agent import health, numbering
from gpu_orchestrator.apps.agent.health import Condition, Fault, Rules
from gpu_orchestrator.apps.agent.survey import Findings, Look
from gpu_orchestrator.apps.agent.usage import Users


@dataclass(frozen=True, slots=True)
class Memory:
    """By UUID: `ids`, `conditions`, the devices as they were `published`, and since when one is `lost`."""

    ids: dict[str, int] = field(default_factory=dict)
    conditions: dict[str, Condition] = field(default_factory=dict)
    published: dict[str, NodeDevice] = field(default_factory=dict)
    lost: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, report: GpuNodeStatus | None, now: float, moment: datetime) -> "Memory":
        """Return what is known from the agent's last report. `moment` is `now` by the calendar."""
        devices = {each.uuid: each for each in report.status.devices if each.uuid} if report else {}
        conditions = {uuid: health.resumed(each, now, moment) for uuid, each in devices.items()}
        return cls(numbering.published(report), conditions, devices)

    def after(self, look: Look, now: float, *, rules: Rules, forget_s: float) -> "Memory":
        """Return what is known after a look."""
        lost = self._lost(look, now, forget_s)
        known = {uuid: number for uuid, number in self.ids.items() if self._stays(uuid, look, lost)}
        ids = numbering.assign(known, look.devices)
        listed = {each.uuid for each in look.devices}
        readings = {uuid: each for uuid, each in look.readings.items() if uuid in listed}
        faults = health.faults(ids, readings, self.conditions, rules)
        faults |= {uuid: Fault(3, why) for uuid, why in look.withheld.items() if uuid in lost}
        conditions = health.steps(self.conditions, faults, now, rules)
        published = {uuid: each for uuid, each in self.published.items() if uuid in ids}
        return Memory(ids, conditions, published, lost)

    def unread(self, silent_s: float, now: float, rules: Rules) -> "Memory":
        """Return what is known when the driver does not answer: no device is healthy."""
        fault = Fault(3, health.UNREAD.format(silent_s))
        conditions = health.steps(self.conditions, dict.fromkeys(self.ids, fault), now, rules)
        return Memory(self.ids, conditions, self.published, self.lost)

    def findings(self, look: Look, users: Users) -> Findings:
        listed = {device.uuid for device in look.devices}
        lost = tuple(each for uuid, each in self.published.items() if uuid in self.ids and uuid not in listed)
        return Findings(self.ids, self.conditions, users, lost, self.published)

    def with_published(self, devices: list[NodeDevice]) -> "Memory":
        published = self.published | {each.uuid: each for each in devices if each.uuid}
        return Memory(self.ids, self.conditions, published, self.lost)

    def _lost(self, look: Look, now: float, forget_s: float) -> dict[str, float]:
        """Return the devices that are not listed, and since when. A slice of MIG that is gone was removed by
        somebody, and so is a GPU that is cut into slices now: neither is lost."""
        listed = {device.uuid for device in look.devices}
        listed |= {device.mig.parent for device in look.devices if device.mig}
        gone = (uuid for uuid in self.ids if uuid not in listed and not self._is_slice(uuid))
        since = {uuid: self.lost.get(uuid, now) for uuid in gone}
        return {uuid: at for uuid, at in since.items() if now - at < forget_s}

    def _is_slice(self, uuid: str) -> bool:
        return uuid in self.published and self.published[uuid].mig is not None

    def _stays(self, uuid: str, look: Look, lost: dict[str, float]) -> bool:
        return uuid in lost or any(device.uuid == uuid for device in look.devices)
