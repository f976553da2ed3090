"""The webhook's metrics, in a registry of their own. Labelled children are cached."""

from functools import cache
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)

ResultName = Literal["allowed", "patched", "denied", "refused", "error"]
"""`refused`: the request was no AdmissionReview that can be read. `error`: a defect of ours."""


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        requests = Counter(
            "gpu_webhook_requests", "Requests, by path and result.", ["path", "result"], registry=registry
        )
        durations = Histogram(
            "gpu_webhook_request_duration_seconds",
            "Time from the head of a request until its answer.",
            ["path"],
            registry=registry,
            buckets=BUCKETS,
        )
        self.claim_reads = Counter(
            "gpu_webhook_claim_reads",
            "Claims read from the API server, because the watch did not show them yet.",
            registry=registry,
        )
        self.closed = Counter(
            "gpu_webhook_connections_closed",
            "Connections closed before an answer: too slow, too long a head, or too many.",
            ["reason"],
            registry=registry,
        )
        self._count = cache(lambda path, result: requests.labels(path, result))
        self._time = cache(lambda path: durations.labels(path))

    def request(self, path: str, result: ResultName, seconds: float) -> None:
        self._count(path, result).inc()
        self._time(path).observe(seconds)
