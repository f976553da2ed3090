"""Some of a machine's devices, for one of several workers on it: `worker --gpus`."""

from collections.abc import Collection, Mapping, Sequence

from gpu_orchestrator.adapters.gpus.fabric import Fabric
from gpu_orchestrator.adapters.gpus.gpu import Device, Gpus, Link, Reading


class UnknownDevices(ValueError):
    """A device that was chosen is not here."""


class Chosen:
    """Devices keep their numbers, so that logs of several workers tell of the same device by the same
    number."""

    def __init__(self, gpus: Gpus, uuids: Sequence[str]) -> None:
        self._gpus, self._uuids = gpus, frozenset(uuids)
        known = [each.uuid for each in gpus.devices()]
        if unknown := sorted(self._uuids - set(known)):
            here = ", ".join(known) or "no devices"
            raise UnknownDevices(f"--gpus: there is no device {unknown[0]} here; give UUIDs of {here}")

    def devices(self) -> tuple[Device, ...]:
        return tuple(each for each in self._gpus.devices() if each.uuid in self._uuids)

    def readings(self) -> tuple[Reading, ...]:
        return tuple(each for each in self._gpus.readings() if each.uuid in self._uuids)

    def withheld(self) -> Mapping[str, str]:
        return {uuid: why for uuid, why in self._gpus.withheld().items() if uuid in self._uuids}

    def links(self) -> tuple[Link, ...]:
        return tuple(each for each in self._gpus.links() if {each.a, each.b} <= self._uuids)

    def fabric(self) -> Fabric:
        return self._gpus.fabric()

    def environment(self, uuids: Collection[str]) -> dict[str, str]:
        return self._gpus.environment(uuids)

    def notes(self) -> tuple[str, ...]:
        return self._gpus.notes()

    def close(self) -> None:
        self._gpus.close()
