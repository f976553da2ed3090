"""taskiq on a stream, acknowledged when done, with results in the same store."""

# mypy: disable-error-code="import-not-found,untyped-decorator"

import asyncio

from client import URL, main
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

broker = RedisStreamBroker(URL).with_result_backend(RedisAsyncResultBackend(URL, prefix_str="taskiq-result"))
loop = asyncio.new_event_loop()


@broker.task
async def noop() -> None:
    return None


async def _submit(count: int) -> None:
    for start in range(0, count, 64):
        await asyncio.gather(*(noop.kiq() for _ in range(start, min(start + 64, count))))


async def _trip() -> None:
    sent = await noop.kiq()
    await sent.wait_result(check_interval=0.001, timeout=30)


if __name__ == "__main__":
    loop.run_until_complete(broker.startup())
    main(
        lambda count: loop.run_until_complete(_submit(count)),
        lambda: loop.run_until_complete(_trip()),
        "taskiq-result*",
    )
    loop.run_until_complete(broker.shutdown())
