"""Measure what a new leader's first seconds cost it, without a control plane. `make bench-takeover`.

A standby has its watches filled: nodes of eight GPUs, all but those of one node held by pods with leases, and
one pod that waits. Then it leads. Measured is its CPU time until it asks for the lease of the first bind, the
share of each part, and how much memory it takes. `--before SRC` is the `src` folder of another checkout: both
run in turns, each in its own process, and `ratio` is how many times the CPU time of this one that one needs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.table import show

ROOT = Path(__file__).parents[1]
BEFORE, NOW = "before", "now"
SMALL_S = 0.001
"""Parts that cost less are left out of the table."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5001)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path, metavar="SRC", help="the `src` folder of another checkout")
    options = parser.parse_args()
    sources = {NOW: ROOT / "src"} | ({BEFORE: options.before.absolute()} if options.before else {})
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sources}
    for number in range(options.rounds):
        for name in sorted(sources, reverse=bool(number % 2)):
            runs[name].append(once(sources[name], options.nodes))
    report(runs, options.nodes)


def once(source: Path, nodes: int) -> dict[str, Any]:
    """Run the code in this folder in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.takeover_once", f"--nodes={nodes}"]
    env = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} with {source} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(runs: dict[str, list[dict[str, Any]]], nodes: int) -> None:
    cpu_s = {name: statistics.median(run["cpu_s"] for run in some) for name, some in runs.items()}
    parts = {name: middle_parts(some) for name, some in runs.items()}
    known = sorted(
        {part for some in parts.values() for part in some}, key=lambda each: -parts[NOW].get(each, 0)
    )
    rows = [
        (part, *(f"{some.get(part, 0.0):.3f}" for some in parts.values()))
        for part in known
        if any(some.get(part, 0.0) >= SMALL_S for some in parts.values())
    ]
    rows.append(("all, until the first lease is asked for", *(f"{each:.3f}" for each in cpu_s.values())))
    title = f"takeover of {nodes} nodes, seconds of CPU, load {os.getloadavg()[0]:.1f}"
    show(title, ("part", *runs), rows)
    figures = {
        "benchmark": "takeover",
        "nodes": nodes,
        "cpu_s": round(cpu_s[NOW], 3),
        "grown_mb": round(statistics.median(run["grown_mb"] for run in runs[NOW]), 1),
    }
    if BEFORE in runs:
        figures["ratio"] = round(statistics.median(ratios(runs)), 2)
        figures["grown_mb_before"] = round(statistics.median(run["grown_mb"] for run in runs[BEFORE]), 1)
    print(json.dumps(figures))


def ratios(runs: dict[str, list[dict[str, Any]]]) -> list[float]:
    """Compare neighbours: the machine's speed changes from minute to minute."""
    pairs = zip(runs[BEFORE], runs[NOW], strict=True)
    return [before["cpu_s"] / now["cpu_s"] for before, now in pairs]


def middle_parts(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Return the median of each part. A part that a run lacks took no time."""
    names = {name for run in runs for name in run["parts"]}
    return {name: statistics.median(run["parts"].get(name, 0.0) for run in runs) for name in names}


if __name__ == "__main__":
    main()
