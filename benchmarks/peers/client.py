"""What the peers' clients share: count results in the store, time round trips, print one JSON object."""

# mypy: disable-error-code="import-not-found"

import json
import os
import sys
import time
from collections.abc import Callable

import redis

URL = os.environ.get("STORE_URL", "redis://127.0.0.1:6379/1")


SLACK = 10
"""A peer's own few keys come and go."""


class Results:
    """Counts what a peer stores: roughly by the size of the database, at last by its keys."""

    def __init__(self, pattern: str) -> None:
        self._server, self._pattern = redis.Redis.from_url(URL), pattern
        self._size, self._before = self._server.dbsize(), self._count()

    def stored(self, count: int, within_s: float = 120.0) -> float:
        """The moment at which so many more results are in the store."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            now = time.monotonic()
            if self._server.dbsize() >= self._size + count - SLACK and self._count() >= self._before + count:
                return now
            time.sleep(0.01)
        raise SystemExit(f"{count} results were not stored within {within_s} s")

    def _count(self) -> int:
        return sum(1 for _ in self._server.scan_iter(self._pattern, count=5000))


def main(submit: Callable[[int], None], trip: Callable[[], None], pattern: str) -> None:
    what, count = sys.argv[1], int(sys.argv[2])
    if what == "submit":
        results = Results(pattern)
        start = time.monotonic()
        submit(count)
        submitted = time.monotonic()
        done = results.stored(count)
        print(json.dumps({"submit_s": submitted - start, "total_s": done - start}))
    else:
        trips = []
        for _ in range(count + 10):
            start = time.monotonic()
            trip()
            trips.append((time.monotonic() - start) * 1000)
        print(json.dumps(trips[10:]))
