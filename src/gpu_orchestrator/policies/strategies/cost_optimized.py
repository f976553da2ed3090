"""Cheap nodes (label `gpu-orchestrator/cheap-node=true`) before others; among them the lower
`gpu-orchestrator/hourly-cost`; then the least loaded."""

from gpu_orchestrator.core.policy import Strategy
from gpu_orchestrator.policies import opinions
from gpu_orchestrator.policies.strategies import least_loaded

strategy = Strategy(
    "costOptimized",
    (
        (10_000_000.0, opinions.cheap),
        (1_000_000.0, opinions.low_price),
        *least_loaded.strategy.opinions,
    ),
)
