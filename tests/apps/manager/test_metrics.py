"""What is counted in plain numbers shows the same as if prometheus_client had counted it."""

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from gpu_orchestrator.apps.manager.metrics import FAST, Metrics, Tally


def test_tally_equals_observations() -> None:
    values = [*FAST, 0.0, 0.0011, 59.9, 61.0, 1e9]
    shown = []
    for is_tally in (True, False):
        registry = CollectorRegistry()
        histogram = Histogram("seconds", "of a test", ["route"], registry=registry, buckets=FAST).labels("/a")
        tally = Tally(histogram, FAST)
        for _ in range(2):
            for each in values:
                (tally if is_tally else histogram).observe(each)
            tally.write()
        samples = generate_latest(registry).decode().splitlines()
        shown.append([line for line in samples if "_created" not in line])
    assert shown[0] == shown[1]


def test_counts_are_written_once() -> None:
    metrics = Metrics()
    metrics.ended("completed", 0.2)
    metrics.ended("queued", 0.0)
    metrics.answered("POST", "/tasks", 202, 0.001)
    metrics.answered("POST", "/tasks", 202, 0.002)
    metrics.dispatched(0.5)
    metrics.write()
    metrics.write()
    value = metrics.registry.get_sample_value
    assert value("tasks_total", {"status": "completed"}) == 1
    assert value("tasks_total", {"status": "queued"}) == value("redeliveries_total") == 1
    assert (
        value("http_requests_total", {"method": "POST", "route": "/tasks", "status": "202"})
        == value("http_request_duration_seconds_count", {"route": "/tasks"})
        == 2
    )
    assert value("task_dispatch_seconds_sum") == 0.5
    assert value("task_duration_seconds_count") == 1
