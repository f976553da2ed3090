"""Opinions rate offers: each gives every offer a number, higher is better, mostly 0 to 1.

Strategies weigh them; a weight ten times as large decides before the smaller ones matter.
"""

import numpy as np

from gpu_orchestrator.core.columns import Floats, Small
from gpu_orchestrator.core.device import WHOLE
from gpu_orchestrator.core.limits import MOST_DEVICES
from gpu_orchestrator.core.offers import Offers

CHEAP_LABEL = "gpu-orchestrator/cheap-node"
COST_LABEL = "gpu-orchestrator/hourly-cost"

TYPICAL_GPUS = (1, 2, 4, 8)
"""How many GPUs requests typically ask for, each of these equally often."""
LEFT_OVER: Floats = np.array(
    [sum(free % gpus for gpus in TYPICAL_GPUS) / len(TYPICAL_GPUS) for free in range(MOST_DEVICES + 1)]
)
"""By the number of a node's free GPUs: how many of them are left over, on average, when the node is filled
with typical requests of one size."""


def free_gpus(offers: Offers) -> Floats:
    """GPUs that are free, shares included; 0 for a request without GPUs."""
    return offers.free_milli / 1000.0 if offers.shape.gpus else np.zeros(len(offers))


def idle(offers: Offers) -> Floats:
    """The free part of the node: of its GPUs, or for a request without GPUs of what it requests."""
    return 1.0 - _load(offers)


def full(offers: Offers) -> Floats:
    return _load(offers)


def without_gpus(offers: Offers) -> Floats:
    """For requests without GPUs: 1 for nodes that have none."""
    return (offers.gpus == 0).astype(float) if not offers.shape.gpus else np.zeros(len(offers))


def tight_device(offers: Offers) -> Floats:
    """How little a share would leave over on the fullest device that fits it."""
    return 1.0 - offers.left_on_tightest / 1000.0


def cheap(offers: Offers) -> Floats:
    """0 for nodes that are not cheap; 1 for those that are, and up to 1 more the lower their price label."""
    price = np.maximum(offers.label_number(COST_LABEL), 0)
    low_price = np.where(price < np.inf, 1.0 / (1.0 + price), 0.0)  # NaN is not below infinity, either
    return np.where(offers.has_label(CHEAP_LABEL, "true"), 1.0 + low_price, 0.0)


def bandwidth(offers: Offers) -> Floats:
    """Weakest link of the offered devices, as a part of 2,000 GB/s; single devices have no link to rate."""
    if offers.shape.gpus < 2:
        return np.zeros(len(offers))
    return np.minimum(offers.bandwidth_gbps / 2000.0, 1.0)


def keeps_islands(offers: Offers) -> Floats:
    """1 if the offer uses up the islands it takes from, less the more of them is left over and so broken
    up."""
    if not offers.shape.gpus:
        return np.zeros(len(offers))
    return 1.0 / (1.0 + offers.left_in_islands)


def defragments(offers: Offers) -> Floats:
    """By how many GPUs the offer lowers the fragmentation of its node; negative if it raises it. Slices are
    fragments already."""
    shape = offers.shape
    if shape.profile:
        return np.zeros(len(offers))
    taken = shape.gpus * (WHOLE if shape.exclusive else shape.milli)
    after = np.maximum(offers.free_gpus - offers.begun, 0)
    return _fragmentation(offers.free_gpus, offers.free_milli) - _fragmentation(
        after, offers.free_milli - taken
    )


def _fragmentation(whole: Small, milli: Small) -> Floats:
    """GPUs that typical requests leave over, and what is free of devices that are shared already."""
    fragments: Floats = LEFT_OVER[whole] + (milli - WHOLE * whole) / WHOLE
    return fragments


def _load(offers: Offers) -> Floats:
    if offers.shape.gpus:
        return offers.gpu_load
    loads = [offers.resource_load(name) for name, _ in offers.shape.resources]
    return np.maximum.reduce(loads) if loads else np.zeros(len(offers))
