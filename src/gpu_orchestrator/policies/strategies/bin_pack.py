"""Prefer the fullest node that still fits, so that empty nodes stay whole; shares go where they leave least
over."""

from gpu_orchestrator.core.policy import Strategy
from gpu_orchestrator.policies import opinions

strategy = Strategy(
    "binPack", ((10.0, opinions.without_gpus), (1.0, opinions.full), (0.5, opinions.tight_device))
)
