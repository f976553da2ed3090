"""Check that memory accounting is right, on real GPUs if there are any: `make bench-vram`.

It starts a manager with one worker on this machine. First, a `vram` task allocates memory and the driver must
report it. Then a foreign process allocates memory, and no task may get that memory. Then tasks of random size
run while foreign processes come and go, and none may run out of memory. `--simulate 1xH200:141GiB` runs it
without a GPU.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from controlplane.cluster import free_port
from gpu_orchestrator.adapters.gpus.find import find
from gpu_orchestrator.adapters.gpus.gpu import Device, Gpus, Reading

COMMAND = (sys.executable, "-c", "from gpu_orchestrator.cli.main import main; main()")
CONTEXT_MIB = 2048
"""The most memory that a CUDA context itself uses."""


class Manager:
    """A server, and a client of it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.url = folder, f"http://127.0.0.1:{port}"
        self.key = ""

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)

    def submit(self, mib: int, hold_s: float) -> str:
        resources = {"gpus": 1, "gpu_memory": f"{mib}MB"}
        body = {"task_type": "vram", "parameters": {"hold_s": hold_s}, "resources": resources}
        answer = self.call("POST", "/tasks", body)
        if "task_id" not in answer:
            raise SystemExit(f"not accepted: {answer}")
        return str(answer["task_id"])

    def status(self, task: str) -> str:
        return str(self.call("GET", f"/tasks/{task}")["status"])

    def wait(self, task: str) -> Any:
        return self.call("GET", f"/tasks/{task}/wait?timeout=60")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulate", default="", help="simulate these GPUs instead of using real ones")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the random part lasts")
    parser.add_argument("--port", type=int, default=0, help="port of the server (default: a free one)")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        gpus = find(arguments.simulate, folder / "gpus")
        device = discover(gpus)
        manager = stack.enter_context(running(folder, arguments.port or free_port(), arguments.simulate))
        figures = {
            "model": device.model,
            "memory_mib": device.memory_mib,
            **agreement(manager, gpus, device),
            **refusal(manager, gpus, device),
            **storm(manager, gpus, device, arguments.seconds),
        }
    proofs = ("agrees", "refused_while_taken", "smaller_one_ran", "ran_when_free", "storm_held")
    figures["ok"] = all(figures[name] for name in proofs)
    for name, value in figures.items():
        print(f"{name:32} {value}")
    print(json.dumps(figures))
    sys.exit(0 if figures["ok"] else 1)


def discover(gpus: Gpus) -> Device:
    devices = gpus.devices()
    if not devices:
        raise SystemExit("no GPU found; give --simulate 1xH200:141GiB to run it on a simulated one")
    for device in devices:
        print(f"found {device.model}, {device.memory_mib} MiB, driver {device.driver_version}, {device.uuid}")
    return devices[0]


def agreement(manager: Manager, gpus: Gpus, device: Device) -> dict[str, Any]:
    """Run a task with a quarter of the device; the driver must report that much plus a context."""
    mib = device.memory_mib // 4
    before = reading(gpus, device).used_mib
    task = manager.submit(mib, hold_s=4)
    until(lambda: reading(gpus, device).used_mib - before >= mib, 60, "the memory of a task shows up")
    taken = reading(gpus, device).used_mib - before
    time.sleep(2)
    shown = manager.call("GET", "/workers/vram")["gpu_info"][0]["memory_used_bytes"] >> 20
    final = manager.wait(task)
    print(f"a task took {mib} MiB: the driver reports {taken} more, the worker reports {shown} in all")
    agrees = mib <= taken <= mib + CONTEXT_MIB and final["status"] == "completed"
    return {"asked_mib": mib, "driver_mib": taken, "reported_mib": shown, "agrees": agrees}


def refusal(manager: Manager, gpus: Gpus, device: Device) -> dict[str, Any]:
    """Let a foreign process hold more than half of the device: a task of that size waits, one of an eighth
    runs."""
    large, small = device.memory_mib * 6 // 10, device.memory_mib // 8
    with foreign_process(gpus, device, large):
        until(lambda: _used(manager) >= large, 30, "the worker reports the foreign process")
        waits, runs = manager.submit(large, 0), manager.submit(small, 0)
        fits = manager.wait(runs)["status"] == "completed"
        refused = manager.status(waits) == "queued"
        why = manager.call("GET", f"/tasks/{waits}/explain")
    after = manager.wait(waits)["status"] == "completed"
    print(f"a foreign process took {large} MiB; a task of {large} waits: {json.dumps(why)[:400]}")
    return {"refused_while_taken": refused, "smaller_one_ran": fits, "ran_when_free": after}


def storm(manager: Manager, gpus: Gpus, device: Device, seconds: float) -> dict[str, Any]:
    """Run waves of tasks of random size, each beside a foreign process, and watch the free memory."""
    rng, most, count, ended = random.Random(7), 0, 0, time.monotonic() + seconds
    stop = threading.Event()
    lowest = [device.memory_mib]
    watcher = threading.Thread(target=_watch, args=(gpus, device, stop, lowest))
    watcher.start()
    failed: list[str] = []
    while time.monotonic() < ended:
        with foreign_process(gpus, device, rng.randrange(device.memory_mib // 8, device.memory_mib // 2)):
            sizes = [rng.randrange(256, device.memory_mib // 6) for _ in range(8)]
            tasks = [manager.submit(mib, rng.uniform(0.1, 0.5)) for mib in sizes]
            finals = [manager.wait(task) for task in tasks]
        failed += [str(final) for final in finals if final["status"] != "completed"]
        count, most = count + len(tasks), max(most, sum(sizes))
    stop.set()
    watcher.join()
    log = (manager.folder / "worker.log").read_text()
    overrun = log.count("OutOfMemory")
    return {
        "storm_tasks": count,
        "asked_at_once_mib": most,
        "lowest_free_mib": lowest[0],
        "out_of_memory": overrun,
        "last_moment_refusals": log.count("MiB free, the task needs"),
        "failed": len(failed),
        "storm_held": not failed and not overrun,
    }


def reading(gpus: Gpus, device: Device) -> Reading:
    return next(now for now in gpus.readings() if now.uuid == device.uuid)


@contextmanager
def foreign_process(gpus: Gpus, device: Device, mib: int) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_orchestrator.adapters.gpus.hold", str(mib)],
        env=os.environ | gpus.environment([device.uuid]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        if process.stdout.readline() != "held\n":
            raise SystemExit(f"the foreign process could not allocate {mib} MiB")
        yield


@contextmanager
def running(folder: Path, port: int, simulate: str) -> Iterator[Manager]:
    manager = Manager(folder, port)
    data = folder / "data"
    with ExitStack() as stack:
        stack.enter_context(
            _process(folder / "server.log", "server", "--port", str(port), "--data", str(data))
        )
        until(lambda: _is_ready(manager), 60, "the server is ready")
        manager.key = json.loads((data / "client.json").read_text())["key"]
        options = ["--simulate", simulate, "--simulation", str(folder / "gpus")] if simulate else []
        joining = ["--server", manager.url, "--token-file", str(data / "worker-token"), "--name", "vram"]
        log = folder / "worker.log"
        stack.enter_context(_process(log, "worker", *joining, "--max-concurrent", "8", *options))
        until(lambda: manager.call("GET", "/workers/vram").get("status") == "online", 60, "the worker joins")
        yield manager


@contextmanager
def _process(log: Path, *arguments: str) -> Iterator[None]:
    with (
        log.open("wb") as output,
        subprocess.Popen([*COMMAND, *arguments], stdout=output, stderr=output) as p,
    ):
        try:
            yield
        except BaseException:
            print(log.read_text()[-3000:])
            raise
        finally:
            p.terminate()


def _is_ready(manager: Manager) -> bool:
    try:
        with urllib.request.urlopen(f"{manager.url}/health/ready", timeout=5):
            return (manager.folder / "data" / "client.json").exists()
    except OSError:
        return False


def _used(manager: Manager) -> int:
    return int(manager.call("GET", "/workers/vram")["gpu_info"][0]["memory_used_bytes"] >> 20)


def _watch(gpus: Gpus, device: Device, stop: threading.Event, lowest: list[int]) -> None:
    while not stop.wait(0.05):
        lowest[0] = min(lowest[0], reading(gpus, device).free_mib)


def until(is_true: Callable[[], bool], within_s: float, what: str) -> None:
    end = time.monotonic() + within_s
    while not is_true():
        if time.monotonic() > end:
            raise SystemExit(f"not within {within_s:g} s: {what}")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
