"""Placement strategies for tasks, in addition to the built-in ones. The setting PLACEMENT_POLICY selects one.

`balanced` has the weights memory fit .4, load .3, model affinity .2, capacity .1; affinity is left
out until workers report which models they have loaded. History has a small weight: among equal workers, one
that fails often comes last.
"""

import numpy as np

from gpu_orchestrator.adapters import plugins
from gpu_orchestrator.core.columns import Floats
from gpu_orchestrator.core.offers import Offers
from gpu_orchestrator.core.policy import Strategy
from gpu_orchestrator.policies import opinions
from gpu_orchestrator.policies.registry import Registry

SLOTS = "slots"
SCORE_LABEL = "gpu-orchestrator/score"


def memory_fit(offers: Offers) -> Floats:
    """Score how little memory would be left on the device with the tightest fit; 1 for a shape without
    memory."""
    requested = offers.shape.memory_mib
    if not requested or not offers.shape.gpus:
        return np.ones(len(offers))
    free = offers.cluster.usage.free_mib[offers.rows]
    total = np.maximum(offers.cluster.inventory.memory_mib[offers.rows], 1)
    left = np.where(offers.free_devices, (free - requested) / total, np.inf).min(axis=1)
    fit: Floats = 1.0 - np.clip(left, 0.0, 1.0)
    return fit


def idle_slots(offers: Offers) -> Floats:
    """Score the free part of the worker's slots."""
    return 1.0 - offers.resource_load(SLOTS)


def capacity(offers: Offers) -> Floats:
    """Score the free GPUs, as a part of eight."""
    return np.minimum(offers.free_milli / 8000.0, 1.0)


def history(offers: Offers) -> Floats:
    """Score the part of the worker's tasks that succeeded; 1 if not enough tasks have ended."""
    score = offers.label_number(SCORE_LABEL)
    return np.where(np.isnan(score), 1.0, score)


def fewest_tasks(offers: Offers) -> Floats:
    kind = offers.cluster.inventory.kind(SLOTS)
    used = offers.cluster.inventory.capacity[offers.rows, kind] - offers.cluster.usage.free[offers.rows, kind]
    fewest: Floats = -used.astype(float)
    return fewest


BALANCED = Strategy("balanced", ((0.4, memory_fit), (0.3, idle_slots), (0.1, capacity), (0.05, history)))
LEAST_CONNECTIONS = Strategy("leastConnections", ((1.0, fewest_tasks),))
WEIGHTED_ROUND_ROBIN = Strategy("weightedRoundRobin", ((1.0, idle_slots), (0.001, opinions.free_gpus)))
OURS = (BALANCED, LEAST_CONNECTIONS, WEIGHTED_ROUND_ROBIN)


def registry(default: str) -> Registry:
    """Return all policies by name, those of installed packages included; raises `UnknownPolicy` if the
    default is not among them."""
    house = Registry()
    strategies = {**house.strategies, **{each.name: each for each in OURS}}
    chosen = plugins.with_installed(Registry(strategies, house.allocators, default, "packed"))
    chosen.policy()
    return chosen
