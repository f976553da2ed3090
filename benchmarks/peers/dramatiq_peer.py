"""dramatiq with results in the same store."""

# mypy: disable-error-code="import-not-found,untyped-decorator"

import dramatiq
from client import URL, main
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL), store_results=True))
dramatiq.set_broker(broker)


@dramatiq.actor
def noop() -> str:
    return "done"


def submit(count: int) -> None:
    for _ in range(count):
        noop.send()


if __name__ == "__main__":
    main(submit, lambda: noop.send().get_result(block=True, timeout=30_000), "?" * 32)  # a digest
