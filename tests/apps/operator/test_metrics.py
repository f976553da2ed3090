"""What the operator's metrics count, and which replica shows them."""

from gpu_orchestrator.apps.operator.metrics import PHASES, Metrics
from tests.support.operator_builders import workload


def phases(metrics: Metrics) -> dict[str, float]:
    value = metrics.registry.get_sample_value
    found = {phase: value("warp_gpuworkload_phase", {"phase": phase}) for phase in PHASES}
    return {phase: count for phase, count in found.items() if count is not None}


def test_only_the_leader_shows_phases() -> None:
    metrics = Metrics()
    first, second = workload("x"), workload("y", status={"phase": "Running"})
    metrics.count_phases(None, first)
    metrics.count_phases(None, second)
    assert phases(metrics) == {}
    metrics.lead()
    assert phases(metrics) == {**dict.fromkeys(PHASES, 0.0), "Pending": 1.0, "Running": 1.0}
    metrics.count_phases(second, workload("y", status={"phase": "Succeeded"}))
    metrics.count_phases(first, None)
    assert phases(metrics) == {**dict.fromkeys(PHASES, 0.0), "Succeeded": 1.0}
