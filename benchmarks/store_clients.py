"""One process of `store.py`: our store with its script calls sent by one of three client libraries.

    python -m benchmarks.store_clients LIBRARY measure URL OPERATION COUNT IN_FLIGHT
    python -m benchmarks.store_clients LIBRARY serve WORDS...

`measure` prints one JSON object; `serve` is `gpu-orchestrator WORDS...`.
Only the path of a script call to the server and back differs. The same code packs arguments and answers, and
everything else (subscriptions, reading the event stream) stays with our client.
"""

import asyncio
import json
import resource
import site
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec
import uvloop

from gpu_orchestrator.adapters.store.records import NewTask
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.adapters.store.valkey.database import Database
from gpu_orchestrator.adapters.store.valkey.scripts import Script
from gpu_orchestrator.api import task
from gpu_orchestrator.api.task import TaskSpec

OURS, VALKEY, GLIDE = "ours", "valkey-py", "valkey-glide"
LIBRARIES = (OURS, VALKEY, GLIDE)
READ, SUBMIT = "read", "submit"
OPERATIONS = (READ, SUBMIT)
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = Path(sys.prefix) / "bench" / "lib" / VERSION / "site-packages"
WARM = 50


def main(library: str, word: str, *rest: str) -> None:
    use(library)
    if word == "serve":
        from gpu_orchestrator.cli.main import main as command

        sys.argv[1:] = rest
        command()
        return
    url, operation, count, in_flight = rest
    print(json.dumps(uvloop.run(measure(url, operation, int(count), int(in_flight)))))


def use(library: str) -> None:
    """Send every script call of this process through this library."""
    if library == OURS:
        return
    site.addsitedir(str(PACKAGES))
    known: dict[str, Any] = {}
    evaluate = {VALKEY: _by_valkey, GLIDE: _by_glide}[library]

    async def call(self: Database, script: Script[Any], *arguments: Any) -> Any:
        return script.decode(await evaluate(known, self, script, msgspec.msgpack.encode(arguments)))

    Database.call = call  # type: ignore[method-assign]


async def _by_valkey(known: dict[str, Any], database: Database, script: Script[Any], packed: bytes) -> Any:
    """Send through valkey-py: a pool with one connection per caller at a time, and the C parser."""
    from valkey import asyncio as valkey
    from valkey.exceptions import NoScriptError
    from valkey.utils import LIBVALKEY_AVAILABLE

    if (client := known.get(database.url)) is None:
        assert LIBVALKEY_AVAILABLE, "valkey-py would use its slower parser; run `make bench-store`"
        client = known[database.url] = valkey.Valkey.from_url(database.url)
    try:
        return await client.evalsha(script.digest, 1, database.prefix, packed)
    except NoScriptError:
        return await client.eval(script.source, 1, database.prefix, packed)


async def _by_glide(known: dict[str, Any], database: Database, script: Script[Any], packed: bytes) -> Any:
    """Send through valkey-glide: one connection for all callers, managed by a library in Rust."""
    import glide  # type: ignore[import-not-found, unused-ignore]

    if (making := known.get(database.url)) is None:
        address = urlsplit(database.url)
        config = glide.GlideClientConfiguration(
            [glide.NodeAddress(address.hostname, address.port)],
            database_id=int(address.path.strip("/") or 0),
            request_timeout=5000,
        )
        making = known[database.url] = asyncio.ensure_future(glide.GlideClient.create(config))
    if (called := known.get(script.name)) is None:
        called = known[script.name] = glide.Script(script.source)
    client = await asyncio.shield(making)
    return await client.invoke_script(called, [database.prefix], [packed])


async def measure(url: str, operation: str, count: int, in_flight: int) -> dict[str, float]:
    async with Store(Database(url), owner="bench") as store:
        call = {READ: _read, SUBMIT: _submit}[operation](store)
        await _times(call, WARM, in_flight)
        cpu_s, start = _cpu_s(), time.perf_counter()
        times = sorted(await _times(call, count, in_flight))
        took_s, cpu_s = time.perf_counter() - start, _cpu_s() - cpu_s
    return {
        "per_s": count / took_s,
        "p50_us": times[count // 2] * 1e6,
        "p99_us": times[int(count * 0.99)] * 1e6,
        "cpu_us": cpu_s / count * 1e6,
        "rss_mb": _rss_mb(),
    }


def _read(store: Store) -> Callable[[], Awaitable[Any]]:
    return lambda: store.usage.of("bench")


def _submit(store: Store) -> Callable[[], Awaitable[Any]]:
    spec = task.encode(TaskSpec("echo", gpus=0))
    return lambda: store.tasks.submit([NewTask(uuid4().hex, spec, "null")])


async def _times(call: Callable[[], Awaitable[Any]], count: int, in_flight: int) -> list[float]:
    left, found = iter(range(count)), []

    async def lane() -> None:
        for _ in left:
            start = time.perf_counter()
            await call()
            found.append(time.perf_counter() - start)

    await asyncio.gather(*(lane() for _ in range(in_flight)))
    return found


def _cpu_s() -> float:
    """Return the CPU seconds of all threads: glide works in a thread of its own."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _rss_mb() -> float:
    """Return the peak so far, from VmHWM: the maximum in getrusage would include what the parent had used."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
