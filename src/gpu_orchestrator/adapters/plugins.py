"""Strategies of installed packages, found by their entry points.

Operator, gpu-scheduler and manager call this once when they start, so a strategy is known to all three or
to none of those that run from one installation.
"""

from importlib.metadata import entry_points

from gpu_orchestrator.policies.registry import GROUP, Registry


def with_installed(registry: Registry) -> Registry:
    """Return a registry that also knows the strategies of installed packages; raises `BadPlugin`."""
    return registry.with_plugins((each.name, each.load) for each in entry_points(group=GROUP))
