"""A client that ignores all limits: it submits as fast as it can, on many connections, whatever is answered.

    python -m tests.support.flood URL COUNT CONNECTIONS [BATCH]      with the key in FLOOD_KEY

Prints one JSON object: answers by status, the smallest `Retry-After`, and seconds. It is a process of its
own, so that it takes no CPU time from the test that measures.
"""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

TASK = {"task_type": "echo", "parameters": {"from": "flood"}, "resources": {"gpus": 0}}


@dataclass
class Flood:
    host: str
    port: int
    request: bytes
    left: Iterator[int]
    statuses: Counter[int] = field(default_factory=Counter)
    retry_after: list[int] = field(default_factory=list)
    without: int = 0

    async def pour(self) -> None:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        for _ in self.left:
            writer.write(self.request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            lines = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
            await reader.readexactly(int(lines["content-length"]))
            self._count(int(head.split(" ", 2)[1]), lines)
        writer.close()

    def _count(self, status: int, lines: dict[str, str]) -> None:
        self.statuses[status] += 1
        if status in (429, 503):
            self.without += "retry-after" not in lines
            self.retry_after.append(int(lines.get("retry-after", 0)))


async def flood(url: str, key: str, count: int, connections: int, batch: int) -> Flood:
    parts = urlsplit(url)
    body = json.dumps({"tasks": [TASK] * batch} if batch else TASK).encode()
    path = "/tasks/batch" if batch else "/tasks"
    head = f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {key}\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    pouring = Flood(parts.hostname or "", parts.port or 80, request, iter(range(count)))
    await asyncio.gather(*(pouring.pour() for _ in range(connections)))
    return pouring


def main(url: str, count: str, connections: str, batch: str = "0") -> None:
    began = time.monotonic()
    done = asyncio.run(flood(url, os.environ["FLOOD_KEY"], int(count), int(connections), int(batch)))
    shown = {
        "statuses": {str(status): number for status, number in sorted(done.statuses.items())},
        "least_retry_after": min(done.retry_after, default=0),
        "without_retry_after": done.without,
        "seconds": round(time.monotonic() - began, 2),
    }
    sys.stdout.write(json.dumps(shown) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
