"""Prefer the fastest links; then the offer that breaks up the fewest islands; then the fullest node."""

from gpu_orchestrator.core.policy import Strategy
from gpu_orchestrator.policies import opinions

strategy = Strategy(
    "topology",
    ((100.0, opinions.bandwidth), (1.0, opinions.keeps_islands), (0.01, opinions.full)),
)
