"""A locust file: clients of the manager, four requests per second each.

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
    """A client. Good answers are 2xx, and 429 or 503 with `Retry-After`: it tells when to retry."""

    wait_time = constant_throughput(PER_SECOND)

    def on_start(self) -> None:
        self.mix = Client(Random())
        time.sleep(self.mix.rng.random() / PER_SECOND)  # so that clients do not send in step
        self.headers = {"Authorization": f"Bearer {os.environ['LOAD_KEY']}"}

    @task  # type: ignore[untyped-decorator]
    def send(self) -> None:
        call = self.mix.next()
        with self.client.request(
            call.method, call.path, json=call.body, name=call.name, headers=self.headers, catch_response=True
        ) as answer:
            if answer.status_code in (200, 202):
                self.mix.remember(call, answer.json())
            elif answer.status_code in (429, 503) and "Retry-After" in answer.headers:
                answer.success()
            else:
                answer.failure(f"{answer.status_code}: {answer.text[:200]}")
