"""A locust file: clients of a cluster manager, four requests a second each.

    LOAD_KEY=<an API key> locust -f tests/load/test_api_endpoints.py --host http://127.0.0.1:8000 --users 50

`make load` starts a server with a worker and runs this against it for five minutes.
"""

import os
import time
from random import Random

from locust import FastHttpUser, constant_throughput, task  # type: ignore[import-not-found]

from tests.support.request_mix import Client

PER_SECOND = 4


class Caller(FastHttpUser):  # type: ignore[misc]
    """Good answers are 2xx, and 429 or 503 with `Retry-After`: then the server says what it can do."""

    wait_time = constant_throughput(PER_SECOND)

    def on_start(self) -> None:
        self.knows = Client(Random())
        time.sleep(self.knows.rng.random() / PER_SECOND)  # or all would ask at the same moments
        self.headers = {"Authorization": f"Bearer {os.environ['LOAD_KEY']}"}

    @task  # type: ignore[untyped-decorator]
    def ask(self) -> None:
        ask = self.knows.next()
        with self.client.request(
            ask.method, ask.path, json=ask.body, name=ask.name, headers=self.headers, catch_response=True
        ) as answer:
            if answer.status_code in (200, 202):
                self.knows.heard(ask, answer.json())
            elif answer.status_code in (429, 503) and "Retry-After" in answer.headers:
                answer.success()
            else:
                answer.failure(f"{answer.status_code}: {answer.text[:200]}")
