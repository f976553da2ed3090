"""The peers of `make bench-tasks`: start each with one worker process, and run its client.

Celery has the settings of systems that must not lose tasks, dramatiq its defaults. "tuned" means the fastest
settings of those tried for each that still acknowledge after the run.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PEERS = HERE / "peers"
BENCH = Path(sys.prefix) / "bench" / "bin"
LIMIT_S = 330
LEAN = ("--without-gossip", "--without-mingle", "--without-heartbeat")
CELERY = ("celery", "-A", "celery_peer", "worker", "--loglevel", "ERROR", "--pool")
DRAMATIQ = ("dramatiq", "dramatiq_peer", "--processes", "1", "--threads")
TASKIQ = ("taskiq", "worker", "taskiq_peer:broker", "--workers", "1", "--no-configure-logging")


@dataclass(frozen=True, slots=True)
class Peer:
    """`at_once` describes how many tasks its one process runs and prefetches. `database` is its own
    database number in the shared server."""

    name: str
    file: str
    command: tuple[str, ...]
    at_once: str
    database: int
    env: dict[str, str] = field(default_factory=dict)

    def environment(self, port: int) -> dict[str, str]:
        url = f"redis://127.0.0.1:{port}/{self.database}"
        return {**os.environ, "STORE_URL": url, "PYTHONPATH": str(PEERS), **self.env}


ALL = (
    Peer("celery", "celery_peer", (*CELERY, "solo"), "1, prefetch 1, acks late", 1),
    Peer(
        "celery tuned",
        "celery_peer",
        (*CELERY, "threads", "--concurrency", "32", *LEAN),
        "32 threads, prefetch 128",
        2,
        {"PREFETCH": "4"},
    ),
    Peer("dramatiq", "dramatiq_peer", (*DRAMATIQ, "8"), "8 threads, prefetch 16", 3),
    Peer(
        "dramatiq tuned",
        "dramatiq_peer",
        (*DRAMATIQ, "8"),
        "8 threads, prefetch 64",
        4,
        {"dramatiq_queue_prefetch": "64"},
    ),
    Peer(
        "taskiq",
        "taskiq_peer",
        (*TASKIQ, "--max-async-tasks", "256", "--max-prefetch", "256"),
        "256 coroutines, prefetch 256",
        5,
    ),
)


def installed() -> bool:
    return (BENCH / "celery").exists()


@contextlib.contextmanager
def working(peer: Peer, port: int) -> Iterator[None]:
    """Run its worker until the block ends."""
    program, *rest = peer.command
    worker = subprocess.Popen(
        [str(BENCH / program), *rest],
        cwd=PEERS,
        env=peer.environment(port),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        os.killpg(worker.pid, signal.SIGTERM)
        try:
            worker.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait(10)


def trips_and_rate(peer: Peer, port: int, trips: int, count: int) -> tuple[list[float], float]:
    """Return round trips in ms, and tasks per second submitted and run, by a worker that is warmed up."""
    with working(peer, port):
        times: list[float] = _run_client(peer, port, "trip", trips)
        return times, count / _run_client(peer, port, "run", count)


def gathered(peer: Peer, port: int, count: int) -> float:
    """Return the seconds that its client takes to submit the tasks and to read their results."""
    with working(peer, port):
        return float(_run_client(peer, port, "gather", count))


def drained(peer: Peer, port: int, count: int) -> float:
    """Return the tasks per second of the worker alone: all were submitted before it was started."""
    _run_client(peer, port, "fill", count)
    with _client(peer, port, "drain", count) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        with working(peer, port):
            return float(json.loads(client.communicate(timeout=LIMIT_S)[0]))


def _run_client(peer: Peer, port: int, word: str, count: int) -> Any:
    with _client(peer, port, word, count) as client:
        output, _ = client.communicate(timeout=LIMIT_S)
    if client.returncode:
        raise SystemExit(f"{peer.name} could not {word} {count}")
    return json.loads(output)


def _client(peer: Peer, port: int, word: str, count: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [str(BENCH / "python"), f"{peer.file}.py", word, str(count)],
        cwd=PEERS,
        env=peer.environment(port),
        stdout=subprocess.PIPE,
        text=True,
    )
