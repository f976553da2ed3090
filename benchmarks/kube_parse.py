"""Measure parsing 5,000 pods: our client against the official one. `make bench-kube-parse`.

Both parse the same pages of JSON, each client in its own processes, in turn. Time is from the bytes of a page
to objects in memory. Memory is what the process has grown by, with its modules loaded before.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import pods
from benchmarks.table import show

OURS = [sys.executable, "-m", "benchmarks.parse_ours"]
PAGE = 500


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write(folder, options.pods)
        official = [options.official_python, str(Path(__file__).with_name("parse_official.py"))]
        runs: dict[str, list[dict[str, float]]] = {"ours": [], "official": []}
        for _ in range(options.rounds):
            runs["ours"].append(_run([*OURS, name]))
            runs["official"].append(_run([*official, name]))
    _report(runs, options.pods, size)


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--official-python", default=sys.executable, help="a Python with `kubernetes` installed"
    )
    return parser.parse_args()


def write(folder: Path, count: int) -> int:
    size = 0
    for number, first in enumerate(range(0, count, PAGE)):
        text = pods.page(first, min(PAGE, count - first), more=first + PAGE < count)
        size += (folder / f"{number:04}.json").write_bytes(text)
    return size


def _run(command: list[str]) -> dict[str, float]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _report(runs: dict[str, list[dict[str, float]]], count: int, size: int) -> None:
    middle = {
        name: {key: statistics.median(run[key] for run in all_runs) for key in all_runs[0]}
        for name, all_runs in runs.items()
    }
    ours, official = middle["ours"], middle["official"]
    rows = [
        (name, f"{run['seconds']:.3f}", f"{1e6 * run['seconds'] / count:.0f}", f"{run['memory_mb']:.1f}")
        for name, run in middle.items()
    ]
    title = f"{count} pods, {size / 1e6:.1f} MB of JSON, load {os.getloadavg()[0]:.1f}"
    show(title, ("client", "seconds", "µs per pod", "MB held"), rows)
    figures = {
        "benchmark": "kube-parse",
        "pods": count,
        "json_mb": round(size / 1e6, 1),
        "seconds": round(ours["seconds"], 4),
        "official_seconds": round(official["seconds"], 3),
        "speedup": round(official["seconds"] / ours["seconds"], 1),
        "memory_mb": round(ours["memory_mb"], 1),
        "official_memory_mb": round(official["memory_mb"], 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
