"""Any node that fits, all equally likely."""

from gpu_orchestrator.core.policy import Strategy

strategy = Strategy("random", ties="random")
