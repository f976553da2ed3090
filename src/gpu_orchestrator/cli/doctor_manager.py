"""What `doctor` checks of the cluster manager: address, health, clock, key, workers, GPUs, data directory."""

import shutil
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_orchestrator import __version__
from gpu_orchestrator.cli import client, times, worker_rows
from gpu_orchestrator.cli.findings import Finding
from gpu_orchestrator.cli.where import Place

CLOCK_S = 30.0
LEAST_FREE_BYTES = 1e9
LEAST_FREE_PART = 0.05
ALIVE = ("online", "busy", "cordoned", "draining", "resting")


def findings(place: Place) -> Iterator[Finding]:
    """Yield one finding after the other; what needs a server that does not answer is left out."""
    yield Finding(True, f"address: {place.url} ({place.found})")
    if place.data_dir:
        yield from _data_directory(Path(place.data_dir))
    try:
        health = client.request(place, "GET", "/health", answer_s=10)
    except client.CannotAsk as error:
        yield Finding(False, f"server: {error}")
        return
    yield _health(health)
    yield _clock(times.parse(health.get("timestamp")), datetime.now(UTC))
    try:
        mine = client.request(place, "GET", "/limits")
        yield Finding(True, f"key: {mine['key_id']} of {mine['owner']}, from {place.key_found}")
        yield from _workers(client.request(place, "GET", "/workers")["workers"], place)
    except client.CannotAsk as error:
        yield Finding(False, f"key: {error}")


def answers(place: Place) -> bool:
    """Return True if a cluster manager runs there."""
    try:
        client.request(place, "GET", "/health", answer_s=10)
    except client.CannotAsk:
        return False
    return True


def _health(health: dict[str, Any]) -> Finding:
    parts = ", ".join(f"{name} {words}" for name, words in (health.get("dependencies") or {}).items())
    version = health.get("version", "")
    older = f" (this command is {__version__})" if version != __version__ else ""
    words = f"server: {health['status']}, version {version}{older}; {parts}"
    return Finding({"healthy": True, "degraded": None}.get(health["status"], False), words)


def _clock(theirs: datetime | None, ours: datetime) -> Finding:
    if theirs is None:
        return Finding(None, "clock: the server does not tell its time")
    apart_s = abs((ours - theirs).total_seconds())
    if apart_s <= CLOCK_S:
        return Finding(True, "clock: the server's agrees with this machine's")
    return Finding(
        False,
        f"clock: the server's and this machine's are {times.duration(apart_s)} apart; set the wrong one",
    )


def _workers(workers: list[dict[str, Any]], place: Place) -> Iterator[Finding]:
    alive = [each for each in workers if each["status"] in ALIVE]
    gone = [each["worker_id"] for each in workers if each not in alive]
    if gone:
        yield Finding(
            None, f"workers: {', '.join(gone)} offline; `gpu-orchestrator worker remove NAME` forgets one"
        )
    if not alive:
        log = Path(place.data_dir) / "worker.log" if place.data_dir else None
        why = f"; {log} may say why" if log and log.exists() else ""
        yield Finding(
            False,
            f"workers: none is online, so no task runs{why}; start one: "
            f"gpu-orchestrator worker --server {place.url} --token-file FILE",
        )
        return
    names = ", ".join(each["worker_id"] for each in alive[:5]) + (", …" if len(alive) > 5 else "")
    yield Finding(True, f"workers: {len(alive)} online ({names})")
    devices = [gpu for each in alive for gpu in each["gpu_info"]]
    yield _devices(devices)
    for each in alive:
        for gpu in each["gpu_info"]:
            if gpu.get("problem"):
                yield Finding(False, f"GPU {gpu['index']} of {each['worker_id']}: {gpu['problem']}")


def _devices(devices: list[dict[str, Any]]) -> Finding:
    if devices:
        return Finding(True, f"GPUs: {worker_rows.gpus(devices)}")
    return Finding(
        None,
        "GPUs: no worker has one; tasks with --gpus 0 run; `gpu-orchestrator up --simulate 4` simulates some",
    )


def _data_directory(folder: Path) -> Iterator[Finding]:
    try:
        free = shutil.disk_usage(folder)
        mode = folder.stat().st_mode
    except OSError as error:
        yield Finding(False, f"data directory: {folder} cannot be used: {(error.strerror or '').lower()}")
        return
    left = f"{free.free / 1e9:.1f} GB left ({free.free / free.total:.0%})"
    if free.free < LEAST_FREE_BYTES or free.free < LEAST_FREE_PART * free.total:
        yield Finding(
            False, f"data directory: {folder} has {left}; without room no task is accepted, make some"
        )
    else:
        yield Finding(True, f"data directory: {folder}, {left}")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield Finding(False, f"data directory: others may look into {folder}, where keys are; chmod 700 it")
