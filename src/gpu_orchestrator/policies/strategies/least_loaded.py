"""Prefer the node with the most free GPUs; among equals the one that is emptier for its size."""

from gpu_orchestrator.core.policy import Strategy
from gpu_orchestrator.policies import opinions

strategy = Strategy("leastLoaded", ((1.0, opinions.free_gpus), (0.0001, opinions.idle)))
