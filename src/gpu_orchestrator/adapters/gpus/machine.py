"""All GPUs of a machine, of whatever vendor, as one source: numbers are unique, and a process sees those that
it is given, whichever library it uses."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from gpu_orchestrator.adapters.gpus.fabric import Fabric
from gpu_orchestrator.adapters.gpus.gpu import Device, Gpus, Link, Reading
from gpu_orchestrator.adapters.gpus.numbers import Numbers


class Machine:
    def __init__(self, *sources: Gpus, missing: str = "") -> None:
        """`missing` tells what could not be looked for."""
        self._sources, self._missing = sources, missing
        self._numbers = Numbers()
        self._known: dict[str, Gpus] = {}
        self._order: tuple[Device, ...] = ()

    def devices(self) -> tuple[Device, ...]:
        """The first source keeps its numbers; a number that is taken already becomes the next free one."""
        found = [(device, source) for source in self._sources for device in source.devices()]
        self._known = {device.uuid: source for device, source in found}
        numbered = [replace(each, index=self._numbers.of(each.uuid, each.index)) for each, _ in found]
        self._order = tuple(sorted(numbered, key=lambda device: device.index))
        return self._order

    def readings(self) -> tuple[Reading, ...]:
        now = {reading.uuid: reading for source in self._sources for reading in source.readings()}
        return tuple(now[device.uuid] for device in self._order)

    def withheld(self) -> Mapping[str, str]:
        return {uuid: why for source in self._sources for uuid, why in source.withheld().items()}

    def links(self) -> tuple[Link, ...]:
        return tuple(link for source in self._sources for link in source.links())

    def fabric(self) -> Fabric:
        return self._sources[0].fabric()

    def environment(self, uuids: Collection[str]) -> dict[str, str]:
        """Return the environment for each vendor that this machine has devices of; for all where it has none,
        so that a device which appears later stays hidden."""
        environment: dict[str, str] = {}
        for source in self._present():
            mine = [uuid for uuid in uuids if self._known.get(uuid, self._sources[0]) is source]
            environment |= source.environment(mine)
        return environment

    def notes(self) -> tuple[str, ...]:
        own = (self._missing,) if self._missing and not self._known else ()
        return (*own, *(note for source in self._present() for note in source.notes()))

    def close(self) -> None:
        for source in self._sources:
            source.close()

    def _present(self) -> list[Gpus]:
        present = [source for source in self._sources if source in self._known.values()]
        return present or list(self._sources)
