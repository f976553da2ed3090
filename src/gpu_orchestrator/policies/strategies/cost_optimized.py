"""Prefer cheap nodes (label `gpu-orchestrator/cheap-node=true`); among them the lower
`gpu-orchestrator/hourly-cost`; then the least loaded."""

from gpu_orchestrator.core.policy import Strategy
from gpu_orchestrator.policies import opinions
from gpu_orchestrator.policies.strategies import least_loaded

strategy = Strategy("costOptimized", ((1e9, opinions.cheap), *least_loaded.strategy.opinions))
