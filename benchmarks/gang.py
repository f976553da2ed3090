"""Measure seconds until all pods of a gang are bound, beside kube-scheduler's own gangs. `make bench-gang`.

Both contenders run on one API server, which has the gates for kube-scheduler's gangs on. One contender runs
at a time; it binds a warm-up pod first. Then all pods of the gangs are created, and the time counts from the
answer to the last creation to the last bind, by the API server's audit log. Contenders take turns; a ratio
compares neighbours in the same round, and the median counts. A round in which the API server answered 429 is
repeated.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import table
from benchmarks.bind import KUBE, PODS, Log, prepare
from controlplane.api import Json
from controlplane.cluster import Cluster
from controlplane.process import Process
from tests.support import scheduler_stage as stages
from tests.support.scheduler_stage import SYSTEM, pod

GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/bench/podgroups"
OURS = "gpu-scheduler"
LIMIT_S = 180.0
MOST_TRIES = 5


@dataclass(frozen=True)
class Result:
    """`seconds` from the last creation to the last bind."""

    who: str
    size: int
    gangs: int
    seconds: float
    pods_per_s: float


class Throttled(Exception):
    """The API server answered 429: the sample says nothing."""


class Bench:
    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._token = cluster.service_account_kubeconfig(SYSTEM, OURS, valid_s=7200)

    def measure(self, who: str, size: int, gangs: int) -> Result:
        for _ in range(MOST_TRIES):
            try:
                return self._measure(who, size, gangs)
            except Throttled:
                print(f"{who}: {gangs} gangs of {size}: throttled, again", file=sys.stderr)
        raise Throttled(f"{who} was throttled {MOST_TRIES} times")

    def _measure(self, who: str, size: int, gangs: int) -> Result:
        user = "system:kube-scheduler" if who == KUBE else f"system:serviceaccount:{SYSTEM}:{OURS}"
        log = Log(self._cluster.folder / "audit.log", user)
        process = self._process(who)
        process.start(wait=False)
        try:
            self._cluster.api.request("POST", PODS, _pod(who, "warm-up"))
            _wait(log, 1)
            # Members come in turn: one gang after the other would be bound while the others are created.
            names = [(f"g{gang}", f"g{gang}-{at}") for at in range(size) for gang in range(gangs)]
            made = [_pod(who, name, gang, size) for gang, name in names]
            if who == KUBE:
                for gang in range(gangs):
                    self._cluster.api.request("POST", GROUPS, _group(f"g{gang}", size))
            self._cluster.api.create_all(PODS, made)
            created = time.time()
            _wait(log, 1 + size * gangs)
        finally:
            log.close()
            process.stop(timeout_s=10)
            self._clean(who, gangs)
        if log.throttled:
            raise Throttled
        took = max(max(log.binds) - created, 0.001)
        return Result(who, size, gangs, round(took, 3), round(size * gangs / took, 1))

    def _process(self, who: str) -> Process:
        if who == KUBE:
            return self._cluster.parts[KUBE]
        file = self._folder / "ours.json"
        settings = {"kubeconfig": str(self._token), "metricsBindAddress": "0", "healthProbeBindAddress": "0"}
        file.write_text(json.dumps(settings))
        command = [sys.executable, "-m", "gpu_orchestrator", "scheduler", f"--config={file}"]
        return Process("ours", command, self._folder, {})

    def _clean(self, who: str, gangs: int) -> None:
        api = self._cluster.api
        api.request("DELETE", PODS, {"gracePeriodSeconds": 0})
        api.request("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases")
        if who == KUBE:
            api.request("DELETE", GROUPS)


def _wait(log: Log, binds: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while len(log.binds) < binds:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(log.binds)} of {binds} pods bound after {LIMIT_S:.0f} s")
        time.sleep(0.02)
        log.read()


def _pod(who: str, name: str, gang: str = "", size: int = 0) -> Json:
    if who == KUBE:
        made = pod(name, resources={"limits": {"nvidia.com/gpu": "1"}})
        made["spec"]["schedulerName"] = "default-scheduler"
        if gang:
            made["spec"]["schedulingGroup"] = {"podGroupName": gang}
        return made
    terms = {"gpu.scheduling/gang": gang, "gpu.scheduling/gang-size": str(size)} if gang else {}
    made = pod(name, gpus=1, annotations=terms)
    made["spec"]["schedulerName"] = OURS
    return made


def _group(name: str, size: int) -> Json:
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": size}}},
    }


def run(nodes: int, sizes: list[int], at_once: list[int], rounds: int) -> list[list[Result]]:
    parts = ("kube-controller-manager", KUBE)
    with (
        Cluster.start(parts=parts, node_lifecycle=False, native_gangs=True) as cluster,
        tempfile.TemporaryDirectory() as folder,
    ):
        cluster.parts[KUBE].stop()
        stages.install(cluster)
        prepare(cluster)
        cluster.gpu_nodes(nodes, static=True)
        bench = Bench(cluster, Path(folder))
        cases = [(size, gangs) for size in sizes for gangs in at_once if size * gangs < nodes * 8]
        return [list(_round(bench, number, size, gangs)) for size, gangs in cases for number in range(rounds)]


def _round(bench: Bench, number: int, size: int, gangs: int) -> Iterator[Result]:
    for who in (KUBE, OURS) if number % 2 == 0 else (OURS, KUBE):
        result = bench.measure(who, size, gangs)
        print(f"{result.who:15} {json.dumps(asdict(result))}", flush=True)
        yield result


def summary(rounds: list[list[Result]]) -> dict[str, Any]:
    """Return for each case how many times as long kube-scheduler took, and the medians of both."""
    figures: dict[str, Any] = {}
    cases = dict.fromkeys((each.size, each.gangs) for results in rounds for each in results)
    for size, gangs in cases:
        pairs = [
            {each.who: each.seconds for each in results}
            for results in rounds
            if (results[0].size, results[0].gangs) == (size, gangs)
        ]
        name = f"{size}" if gangs == 1 else f"{size}_x{gangs}"
        figures[f"ratio_gang_{name}"] = round(statistics.median(each[KUBE] / each[OURS] for each in pairs), 2)
        figures[f"seconds_{name}"] = {
            who: round(statistics.median(each[who] for each in pairs), 3) for who in (KUBE, OURS)
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--sizes", default="8,64,256,512", help="pods of a gang, comma-separated")
    parser.add_argument("--at-once", default="1,20", help="how many gangs come together, comma-separated")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    sizes, at_once = ([int(each) for each in text.split(",")] for text in (args.sizes, args.at_once))
    rounds = run(args.nodes, sizes, at_once, args.rounds)
    figures = summary(rounds)
    rows = [
        (name.removeprefix("seconds_"), *(f"{value[who]:.2f}" for who in (KUBE, OURS)))
        for name, value in figures.items()
        if name.startswith("seconds_")
    ]
    table.show("Seconds until a gang is bound", ("gang", KUBE, OURS), rows)
    load = Path("/proc/loadavg").read_text().split()[0]
    print(json.dumps({"nodes": args.nodes, "load": float(load), **figures}))


if __name__ == "__main__":
    main()
