"""Filters on a node's devices: right kind, healthy, free, and linked well enough."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpu_orchestrator.core.columns import Bools, Ints, any_in_row, count_in_row, some, where
from gpu_orchestrator.core.device import WHOLE
from gpu_orchestrator.core.filters.base import Filter
from gpu_orchestrator.core.inventory import Inventory
from gpu_orchestrator.core.request import Shape
from gpu_orchestrator.core.topology import best_link

if TYPE_CHECKING:
    from gpu_orchestrator.core.cluster import Cluster


ONLY_SLICES = "have only slices of GPUs (MIG)"


class Kind:
    """Which devices are of the kind that a shape asks for."""

    def __init__(self, shape: Shape, inventory: Inventory) -> None:
        self.shape = shape
        self._resolve(inventory)
        is_picky = shape.vendor or shape.models or shape.memory_mib or shape.profile
        self.any_whole = shape.exclusive and not is_picky

    def of_vendor(self, inventory: Inventory, rows: Ints) -> Bools:
        if self.unheard:
            self._resolve(inventory)
        vendor = some(inventory.vendor, rows)
        match: Bools = vendor == self.vendor if self.vendor else vendor > 0
        return match

    def matching(self, inventory: Inventory, rows: Ints) -> Bools:
        """Of the right vendor, model and size, or slices of the right profile, whatever their health."""
        match = self.of_vendor(inventory, rows)
        if inventory.has_slices or self.shape.profile:
            match = match & self.of_profile(inventory, rows)
        if self.models:
            match = match & self.of_model(inventory, rows)
        if self.shape.memory_mib:
            match = match & (some(inventory.memory_mib, rows) >= self.shape.memory_mib)
        return match

    def free(self, cluster: "Cluster", rows: Ints) -> Bools:
        """Matching, healthy, and with room for one more holder of this shape."""
        inventory, usage, shape = cluster.inventory, cluster.usage, self.shape
        free = some(inventory.slices if shape.profile else inventory.usable, rows)
        if self.vendor or self.models or shape.profile:
            free = free & self.matching(inventory, rows)
        if shape.exclusive:
            free = free & (some(usage.holders, rows) == 0)
        elif shape.milli:
            free = free & (some(usage.free_milli, rows) >= shape.milli)
        if shape.memory_mib:
            free = free & (some(usage.free_mib, rows) >= shape.memory_mib)
        return self.of_one_vendor(inventory, rows, free)

    def of_profile(self, inventory: Inventory, rows: Ints) -> Bools:
        """Slices of the profile; whole GPUs if none is asked for."""
        if self.unheard:
            self._resolve(inventory)
        match: Bools = some(inventory.profile, rows) == self.profile
        return match

    def of_one_vendor(self, inventory: Inventory, rows: Ints, grid: Bools) -> Bools:
        """One task cannot use devices of different vendors: on a node with several, keep those of the vendor
        that could offer the best set. Such nodes are rare, so they are checked one by one."""
        if self.shape.gpus > 1 and not self.vendor and inventory.has_mixed:
            for at in where(inventory.mixed[rows]).tolist():
                grid[at] = self._best_vendor(inventory, int(rows[at]), grid[at])
        return grid

    def _best_vendor(self, inventory: Inventory, row: int, devices: Bools) -> Bools:
        vendor, layout = inventory.vendor[row], inventory.names.values[inventory.topology[row]]
        camps = [devices & (vendor == each) for each in dict.fromkeys(vendor[devices].tolist())]

        def worth(camp: Bools) -> tuple[float, int]:
            return best_link(layout, masks_of(camp[None])[0], self.shape.gpus), int(camp.sum())

        return max(camps, key=worth, default=devices)

    def of_model(self, inventory: Inventory, rows: Ints) -> Bools:
        if self.unheard:
            self._resolve(inventory)
        model = some(inventory.model, rows)
        match: Bools = model == self.models[0]
        for other in self.models[1:]:
            match = match | (model == other)
        return match

    def _resolve(self, inventory: Inventory) -> None:
        """Look up vendor, profile and models again: no device may have had them when they were requested."""
        find, shape = inventory.names.find, self.shape
        self.vendor = find(shape.vendor) if shape.vendor else 0
        self.profile = find(shape.profile) if shape.profile else 0
        self.models = [find(model) for model in shape.models]
        self.unheard = self.vendor < 0 or self.profile < 0 or -1 in self.models


def facts_for(shape: Shape, inventory: Inventory) -> Iterator[Filter]:
    if shape.gpus:
        kind = Kind(shape, inventory)
        yield HasGpus(kind)
        if shape.profile:
            yield OfProfile(kind)
        if shape.vendor:
            yield OfVendor(kind)
        if shape.models:
            yield OfModel(kind)
        if shape.memory_mib:
            yield LargeEnough(kind)
        yield Healthy(kind)


def free_for(shape: Shape, inventory: Inventory) -> Iterator[Filter]:
    if shape.gpus:
        kind = Kind(shape, inventory)
        yield FreeDevices(kind)
        if shape.needs_bandwidth:
            yield Linked(kind)


class HasGpus(Filter):
    lasting = True

    def __init__(self, kind: Kind) -> None:
        self.is_for_slices = bool(kind.shape.profile)
        self.reason = "have no GPU"

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        inventory = cluster.inventory
        passed: Bools = (inventory.gpus if self.is_for_slices else inventory.whole)[rows] > 0
        return passed

    def reasons(self, cluster: "Cluster", rows: Ints) -> dict[str, int]:
        cut = int((cluster.inventory.gpus[rows] > 0).sum())
        found = {self.reason: len(rows) - cut, ONLY_SLICES: cut}
        return {reason: count for reason, count in found.items() if count}


class OfProfile(Filter):
    lasting = True

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.reason = f"have no {kind.shape.profile} slice"

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        return any_in_row(self.kind.of_profile(cluster.inventory, rows))


class OfVendor(Filter):
    lasting = True

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.reason = f"have no {kind.shape.vendor} GPU"

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        return any_in_row(self.kind.of_vendor(cluster.inventory, rows))


class OfModel(Filter):
    lasting = True

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        inventory = cluster.inventory
        match = self.kind.of_vendor(inventory, rows) & self.kind.of_model(inventory, rows)
        return any_in_row(match)

    def reasons(self, cluster: "Cluster", rows: Ints) -> dict[str, int]:
        asked = " or ".join(self.kind.shape.models)
        numbers, counts = np.unique(cluster.inventory.models[rows], return_counts=True)
        counted: Counter[str] = Counter()
        for number, count in zip(numbers, counts, strict=True):
            model = cluster.inventory.names.values[number] or "of unknown model"
            counted[f"are {model} ({asked} asked)"] += int(count)
        return counted


class LargeEnough(Filter):
    lasting = True

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.reason = f"have no GPU of {kind.shape.memory_mib} MiB"

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        return any_in_row(self.kind.matching(cluster.inventory, rows))


class Healthy(Filter):
    """Fails a node, separately from `FreeDevices`, only where unhealthy devices make the difference."""

    def __init__(self, kind: Kind) -> None:
        self.kind, self.gpus = kind, kind.shape.gpus
        what = _what(kind.shape)
        self.reason = (
            f"have no healthy {what}" if self.gpus == 1 else f"have fewer than {self.gpus} healthy {what}s"
        )

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        inventory = cluster.inventory
        passed: Bools = inventory.healthy[rows] == inventory.gpus[rows]
        if not passed.all():
            match = self.kind.matching(inventory, rows)
            sound = inventory.slices if self.kind.shape.profile else inventory.usable
            well = count_in_row(match & some(sound, rows))
            passed = (well >= self.gpus) | (count_in_row(match) < self.gpus)
        return passed


class FreeDevices(Filter):
    fact = False

    def __init__(self, kind: Kind) -> None:
        self.kind, self.gpus = kind, kind.shape.gpus
        self.reason = _few(kind.shape)

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        if self.kind.any_whole and not cluster.inventory.has_mixed:
            enough: Bools = cluster.usage.whole[rows] >= self.gpus
            return enough
        passed: Bools = count_in_row(self.kind.free(cluster, rows)) >= self.gpus
        return passed

    def lack(self, cluster: "Cluster", row: int) -> str:
        free = int(self.kind.free(cluster, np.array([row])).sum())
        missing = self.gpus - free
        what = _what(self.kind.shape)
        return f"lacks {missing} free {what}{'s' if missing > 1 else ''} ({free} of {self.gpus})"


def _what(shape: Shape) -> str:
    return f"{shape.profile} slice" if shape.profile else "GPU"


def _few(shape: Shape) -> str:
    if shape.profile:
        what = _what(shape)
        return f"have no free {what}" if shape.gpus == 1 else f"have fewer than {shape.gpus} free {what}s"
    if shape.exclusive:
        return "have no wholly free GPU" if shape.gpus == 1 else f"have fewer than {shape.gpus} free GPUs"
    parts = [f"{shape.milli} of {WHOLE} milli"] if shape.milli else []
    parts += [f"{shape.memory_mib} MiB"] if shape.memory_mib else []
    what = f"with {' and '.join(parts)} free"
    return f"have no GPU {what}" if shape.gpus == 1 else f"have fewer than {shape.gpus} GPUs {what}"


class Linked(Filter):
    """Some set of free devices has the requested bandwidth between every pair."""

    fact = False

    def __init__(self, kind: Kind) -> None:
        self.kind, self.gpus = kind, kind.shape.gpus
        self.gbps = kind.shape.min_bandwidth_gbps
        self.reason = f"offer less than {self.gbps} GB/s"

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        inventory = cluster.inventory
        masks = masks_of(self.kind.free(cluster, rows))
        layouts = [inventory.names.values[at] for at in inventory.topology[rows]]
        links = (best_link(layout, mask, self.gpus) for layout, mask in zip(layouts, masks, strict=True))
        return np.fromiter((link >= self.gbps for link in links), np.bool_, len(rows))

    def lack(self, cluster: "Cluster", row: int) -> str:
        mask = masks_of(self.kind.free(cluster, np.array([row])))[0]
        layout = cluster.inventory.names.values[cluster.inventory.topology[row]]
        return f"offers {max(best_link(layout, mask, self.gpus), 0):g} GB/s ({self.gbps} asked)"


def masks_of(grid: Bools) -> list[int]:
    """Return each row of a grid as a bit mask."""
    packed = np.packbits(grid, axis=1, bitorder="little")
    raw, width = packed.tobytes(), packed.shape[1]
    if width == 1:
        return list(raw)
    return [int.from_bytes(raw[at : at + width], "little") for at in range(0, len(raw), width)]
