"""Any node that fits, each as likely as the other."""

from gpu_orchestrator.core.policy import Strategy

strategy = Strategy("random", ties="random")
