"""Callers without a key that mean harm: many slow connections, and a header without an end.

    python -m tests.support.strangers slow HOST PORT COUNT     one byte a second each, until the server ends
    it python -m tests.support.strangers header HOST PORT BYTES   one header of this length

Prints `ready` when all are connected, and at the end one line of JSON.
"""

import asyncio
import json
import sys
from collections import Counter
from contextlib import suppress

START = b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: "


async def slow(host: str, port: int, number: int, ready: asyncio.Semaphore) -> int:
    """Send a byte a second. Return the status of the answer, 0 if there was none."""
    await asyncio.sleep(number * 0.002)
    reader, writer = await asyncio.open_connection(host, port)
    answer = b""
    with suppress(OSError):
        writer.write(START)
        ready.release()
        while not answer:
            writer.write(b"a")
            try:
                answer = await asyncio.wait_for(reader.read(100), 1.0)
            except TimeoutError:
                continue
            break
    writer.close()
    return int(answer[9:12] or b"0")


async def header(host: str, port: int, size: int) -> tuple[int, int]:
    """Send an endless header. Return how many bytes went out, and the status of the answer, 0 if there was
    none."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(START)
    sent, answer = 0, b""
    with suppress(OSError):
        while sent < size and not reader.at_eof():
            writer.write(b"a" * 16_384)
            await writer.drain()
            sent += 16_384
    with suppress(OSError):
        answer = await reader.read(100)
    writer.transport.abort()
    return sent, int(answer[9:12] or b"0")


async def main(kind: str, host: str, port: int, number: int) -> None:
    if kind == "slow":
        ready = asyncio.Semaphore(0)
        callers = [asyncio.create_task(slow(host, port, each, ready)) for each in range(number)]
        for _ in callers:
            await ready.acquire()
        say("ready")
        say(json.dumps(Counter(await asyncio.gather(*callers))))
    else:
        say("ready")
        say(json.dumps(await header(host, port, number)))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
