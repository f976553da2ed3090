"""What the peers' clients share: count results in the store, time round trips, print one JSON object.

run COUNT     submit while the worker works; print the seconds until the last result was stored
fill COUNT    submit while no worker runs
drain COUNT   print "ready", then the results stored per second while the worker emptied the queue
trip COUNT    print the round trips of single tasks, in ms
gather COUNT  submit while the worker works, read every result with the peer's client; print the seconds
"""

# mypy: disable-error-code="import-not-found"

import json
import os
import sys
import time
from collections.abc import Callable

import redis

URL = os.environ.get("STORE_URL", "redis://127.0.0.1:6379/1")
PREFETCH = int(os.environ.get("PREFETCH", "1"))
WITHIN_S = 300.0
SLACK = 10
"""A peer adds and removes a few keys of its own."""


class Results:
    """Count what a peer stores: at first roughly by the size of the database, at the end by its keys."""

    def __init__(self, pattern: str) -> None:
        self._server, self._pattern = redis.Redis.from_url(URL), pattern
        self._size, self._before = self._server.dbsize(), self._count()

    def about(self, count: int) -> tuple[int, float]:
        """Wait for about `count` new results. Return how many there are, and when."""
        end = time.monotonic() + WITHIN_S
        while (now := time.monotonic()) < end:
            if (more := self._server.dbsize() - self._size) >= count - SLACK:
                return more, now
            time.sleep(0.005)
        raise SystemExit(f"{count} results were not stored within {WITHIN_S} s")

    def exactly(self, count: int) -> float:
        """Return the time at which exactly `count` new results are in the store."""
        while (now := self.about(count)[1]) and self._count() < self._before + count:
            time.sleep(0.005)
        return now

    def _count(self) -> int:
        return sum(1 for _ in self._server.scan_iter(self._pattern, count=5000))


def main(
    submit: Callable[[int], None],
    trip: Callable[[], None],
    pattern: str,
    gather: Callable[[int], list[object]] | None = None,
) -> None:
    word, count = sys.argv[1], int(sys.argv[2])
    match word:
        case "run":
            results, start = Results(pattern), time.monotonic()
            submit(count)
            print(json.dumps(results.exactly(count) - start))
        case "fill":
            submit(count)
            print(json.dumps(count))
        case "drain":
            print(json.dumps(drained_per_s(Results(pattern), count)))
        case "gather" if gather:
            trip()
            start = time.monotonic()
            assert len(gather(count)) == count
            print(json.dumps(time.monotonic() - start))
        case "trip":
            print(json.dumps([timed_ms(trip) for _ in range(count + 10)][10:]))


def drained_per_s(results: Results, count: int) -> float:
    """Return results per second, without the first tenth, in which the worker warms up."""
    print("ready", flush=True)
    first, began = results.about(count // 10)
    last, ended = results.about(count)
    return (last - first) / (ended - began)


def timed_ms(trip: Callable[[], None]) -> float:
    start = time.monotonic()
    trip()
    return (time.monotonic() - start) * 1000
