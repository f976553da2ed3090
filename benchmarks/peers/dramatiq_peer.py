"""dramatiq with results in the same store."""

# mypy: disable-error-code="import-not-found,untyped-decorator"

import dramatiq
from client import URL, WITHIN_S, main
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


def gather(count: int) -> list[object]:
    sent = dramatiq.group([noop.message() for _ in range(count)]).run()
    return list(sent.get_results(block=True, timeout=int(WITHIN_S * 1000)))


if __name__ == "__main__":
    main(submit, lambda: noop.send().get_result(block=True, timeout=30_000), "?" * 32, gather)  # a digest
