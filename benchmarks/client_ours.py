"""Our side of `make bench-client`: one program that submits no-ops and gathers their results.

python -m benchmarks.client_ours Client 10000
"""

import asyncio
import json
import os
import sys
import time

from gpu_orchestrator import AsyncClient, Call, Client

WITHIN_S = 300.0


def blocking(count: int) -> None:
    with Client() as client:
        start = time.monotonic()
        results = client.gather(client.batch(calls(count)), WITHIN_S)
        tell(results, count, start)


async def awaiting(count: int) -> None:
    async with AsyncClient() as client:
        start = time.monotonic()
        results = await client.gather(await client.batch(calls(count)), WITHIN_S)
        tell(results, count, start)


def calls(count: int) -> list[Call[int]]:
    return [Call("echo", number, gpus=0) for number in range(count)]


def tell(results: list[int], count: int, start: float) -> None:
    seconds = time.monotonic() - start
    assert results == list(range(count))
    print(json.dumps(seconds))


async def gathered(client: str, url: str, key: str, count: int) -> float:
    """Return the seconds that a program with this client takes, without its start."""
    environ = {**os.environ, "GPU_ORCHESTRATOR_URL": url, "API_KEY": key}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.client_ours",
        client,
        str(count),
        stdout=asyncio.subprocess.PIPE,
        env=environ,
    )
    printed, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"{client} could not gather {count}")
    return float(json.loads(printed))


if __name__ == "__main__":
    name, number = sys.argv[1], int(sys.argv[2])
    blocking(number) if name == "Client" else asyncio.run(awaiting(number))
