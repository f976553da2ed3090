"""What the peers' clients share: count results in the store, time round trips, print one JSON object."""

import json
import os
import sys
import time
from collections.abc import Callable

import redis

URL = os.environ.get("STORE_URL", "redis://127.0.0.1:6379/1")


def stored(pattern: str, count: int, within_s: float = 300.0) -> float:
    """The moment at which so many results are in the store."""
    server = redis.Redis.from_url(URL)
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        now = time.monotonic()
        if server.dbsize() >= count and sum(1 for _ in server.scan_iter(pattern, count=5000)) >= count:
            return now
        time.sleep(0.01)
    raise SystemExit(f"{count} results were not stored within {within_s} s")


def main(submit: Callable[[int], None], trip: Callable[[], None], pattern: str) -> None:
    what, count = sys.argv[1], int(sys.argv[2])
    if what == "submit":
        redis.Redis.from_url(URL).flushdb()
        start = time.monotonic()
        submit(count)
        submitted = time.monotonic()
        done = stored(pattern, count)
        print(json.dumps({"submit_s": submitted - start, "total_s": done - start}))
    else:
        trips = []
        for _ in range(count + 10):
            start = time.monotonic()
            trip()
            trips.append((time.monotonic() - start) * 1000)
        print(json.dumps(trips[10:]))
