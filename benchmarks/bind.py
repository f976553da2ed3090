"""Measure pods bound per second, against kube-scheduler on the same API server. `make bench-bind`.

A backlog of single-GPU pods waits; then one scheduler at a time is started and binds them. Time is from the
first bind to the last, and to the last write of any kind (events, claim status), by the API server's own
audit log. Contenders take turns; a ratio compares neighbours in the same round, and the median counts.
`ratio_*_cpu` compares the CPU of API server, etcd and scheduler until the last bind, which other load on the
machine disturbs less than wall-clock time. Each scheduler authenticates as it is usually deployed:
kube-scheduler with a client certificate, ours with the token of its ServiceAccount and the shipped rights.
With `--before SRC`, the `src` folder of another checkout, the scheduler of that one takes turns as well, as
`lease before` and so on; `ratio_lease_before` is how many times its rate this one has.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from controlplane.api import Json
from controlplane.cluster import Cluster
from controlplane.process import Process
from gpu_orchestrator.api import names
from tests.support import scheduler_stage as stages
from tests.support.scheduler_stage import CLAIMS, SYSTEM, claim, pod

CONFIG = Path(__file__).parents[1] / "config" / "scheduler"
WRITES = {"create", "update", "patch", "delete"}
PODS = "/api/v1/namespaces/bench/pods"
QUEUES = "/apis/gpu.scheduling/v1/gpuqueues"
SETTLE_S = 1.5
LIMIT_S = 180.0
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
"""Ticks per second, the unit in which the kernel counts CPU time."""

KUBE = "kube-scheduler"
OURS = ("lease", "binding", "claims")
PLAIN = "plain"
"""Our scheduler as in `lease`, but with every request sent by aiohttp; see `plain_http.py`."""
QUEUED = "queues"
"""Our scheduler as in `lease`, with pods that are in as many GpuQueues as `--queues` says, in turn."""
BEFORE = " before"
"""Behind the name of a contender: the scheduler of the other checkout."""


@dataclass(frozen=True)
class Sizes:
    nodes: int
    pods: int
    queues: int


@dataclass(frozen=True)
class Result:
    """One contender's round. Rates are pods per second; `cpu_s` is seconds between the first and last bind,
    `rest_cpu_s` from there to the last write."""

    who: str
    bound_per_s: float
    done_per_s: float
    writes_per_pod: float
    cpu_s: dict[str, float]
    rest_cpu_s: dict[str, float]
    rss_mb: float
    writes: dict[str, int] = field(default_factory=dict)


class Log:
    """What one user has written since this was created, read from the audit log without a request to the
    server. The server rotates the file now and then; the old one is read to its end first."""

    def __init__(self, file: Path, user: str) -> None:
        self._path, self._user = file, user
        self._file = file.open("rb")
        self._file.seek(0, os.SEEK_END)
        self._rest = b""
        self.binds: list[float] = []
        self.writes: list[float] = []
        self.kinds: Counter[str] = Counter()
        self.throttled = 0

    def read(self) -> None:
        is_old = self._path.exists() and self._path.stat().st_ino != os.fstat(self._file.fileno()).st_ino
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            self._take(line)
        if is_old:
            self._file.close()
            self._file = self._path.open("rb")
            self.read()

    def close(self) -> None:
        self._file.close()

    def _take(self, line: bytes) -> None:
        if self._user.encode() not in line:
            return
        event = json.loads(line)
        about = event.get("objectRef", {})
        if event["user"].get("username") != self._user or event["verb"] not in WRITES:
            return
        if about.get("name", "").startswith(("gpu-scheduler.", "kube-scheduler")):
            return  # the leader's own lease
        what = "/".join(part for part in (about.get("resource"), about.get("subresource")) if part)
        if what in ("nodes/status", "gpuqueues/status"):
            return  # a node's capacity is written once, and what queues use now and then; neither for a pod
        self.throttled += event.get("responseStatus", {}).get("code") == 429
        at = datetime.fromisoformat(event["stageTimestamp"]).timestamp()
        self.kinds[f"{event['verb']} {what}"] += 1
        self.writes.append(at)
        if what == "pods/binding" and event.get("responseStatus", {}).get("code") == 201:
            self.binds.append(at)


class Bench:
    """`before`: the code of the other checkout, if there is one. `profiles`: a folder for cProfile's results
    of our scheduler; the figures are then useless."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        sizes: Sizes,
        *,
        before: Path | None,
        profiles: Path | None,
    ) -> None:
        self._cluster, self._folder, self._pods, self._queues = cluster, folder, sizes.pods, sizes.queues
        self._before, self._profiles = before, profiles
        self._token = cluster.service_account_kubeconfig(SYSTEM, "gpu-scheduler", valid_s=7200)

    def measure(self, name: str) -> Result:
        who = name.removesuffix(BEFORE)
        self._make_pods(who)
        user = "system:kube-scheduler" if who == KUBE else f"system:serviceaccount:{SYSTEM}:gpu-scheduler"
        log = Log(self._cluster.folder / "audit.log", user)
        process = self._process(who, is_before=name.endswith(BEFORE))
        process.start(wait=False)
        try:
            self._wait(log, 1)
            first = self._cpu(process)
            self._wait(log, self._pods)
            last = self._cpu(process)
            self._wait_quiet(log)
            done, rss_mb = self._cpu(process), process.memory_mb
        finally:
            log.close()
            process.stop(timeout_s=10)
            self._clean(who)
        return _result(name, log, _less(last, first), _less(done, last), rss_mb)

    def _process(self, who: str, *, is_before: bool) -> Process:
        if who == KUBE:
            return self._cluster.parts[KUBE]
        settings = {
            "kubeconfig": str(self._token),
            "lock": "binding" if who == "binding" else "lease",
            "metricsBindAddress": "0",
            "healthProbeBindAddress": "0",
        }
        file = self._folder / f"{who}.json"
        file.write_text(json.dumps(settings))
        profiler = ["-m", "cProfile", "-o", str(self._profiles / f"{who}.prof")] if self._profiles else []
        module = "benchmarks.plain_http" if who == PLAIN else "gpu_orchestrator"
        command = [sys.executable, *profiler, "-m", module, "scheduler", f"--config={file}"]
        env = {"PYTHONPATH": str(self._before)} if is_before else {}
        return Process("ours", command, self._folder, env)

    def _cpu(self, process: Process) -> dict[str, float]:
        parts = {name: self._cluster.parts[name].cpu_s for name in ("kube-apiserver", "etcd")}
        return {**parts, "scheduler": process.cpu_s}

    def _wait(self, log: Log, binds: int) -> None:
        deadline = time.monotonic() + LIMIT_S
        while len(log.binds) < binds:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(log.binds)} of {binds} pods bound after {LIMIT_S:.0f} s")
            time.sleep(0.05)
            log.read()

    def _wait_quiet(self, log: Log) -> None:
        seen, since = -1, time.monotonic()
        while time.monotonic() - since < SETTLE_S:
            log.read()
            if len(log.writes) != seen:
                seen, since = len(log.writes), time.monotonic()
            time.sleep(0.1)

    def _make_pods(self, who: str) -> None:
        if who == "claims":
            made = [claim(f"c{number}") for number in range(self._pods)]
            self._cluster.api.create_all(CLAIMS.format("bench"), made)
        pods = [_pod(who, number) for number in range(self._pods)]
        if who == QUEUED:
            queues = [f"q{number}" for number in range(self._queues)]
            self._cluster.api.create_all(QUEUES, [_queue(name, self._pods) for name in queues])
            for number, each in enumerate(pods):
                each["metadata"]["labels"] = {names.QUEUE: queues[number % len(queues)]}
        self._cluster.api.create_all(PODS, pods)

    def _clean(self, who: str) -> None:
        """Delete whole collections. This is not measured, so the server may take its time."""
        api, claims = self._cluster.api, CLAIMS.format("bench")
        api.request("DELETE", PODS, {"gracePeriodSeconds": 0})
        api.request("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases")
        if who == QUEUED:
            api.request("DELETE", QUEUES)
        if who == "claims":
            free = {"metadata": {"finalizers": None}}
            named = [{"path": f"{claims}/c{number}"} for number in range(self._pods)]
            api.in_parallel(
                lambda each: api.request(
                    "PATCH", each["path"], free, content_type="application/merge-patch+json"
                ),
                named,
            )
            api.request("DELETE", claims)


def _pod(who: str, number: int) -> Json:
    name = f"p{number}"
    if who == KUBE:
        made = pod(name, resources={"limits": {"nvidia.com/gpu": "1"}})
        made["spec"]["schedulerName"] = "default-scheduler"
        return made
    made = pod(name, claim=f"c{number}") if who == "claims" else pod(name, gpus=1)
    made["spec"]["schedulerName"] = "gpu-scheduler"
    return made


def _queue(name: str, pods: int) -> Json:
    """Return a queue that may use all that there is, and is guaranteed a GPU."""
    spec = {"namespaceSelector": {}, "limit": {"*": 1000 * pods}, "guaranteed": {"*": 1000}}
    return {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuQueue",
        "metadata": {"name": name},
        "spec": spec,
    }


def _less(later: dict[str, float], earlier: dict[str, float]) -> dict[str, float]:
    return {name: round(later[name] - earlier[name], 2) for name in later}


def _result(who: str, log: Log, cpu: dict[str, float], rest: dict[str, float], rss_mb: float) -> Result:
    binds, writes = sorted(log.binds), sorted(log.writes)
    count = len(binds) - 1
    return Result(
        who,
        bound_per_s=round(count / (binds[-1] - binds[0]), 1),
        done_per_s=round(count / (writes[-1] - binds[0]), 1),
        writes_per_pod=round(len(writes) / len(binds), 2),
        cpu_s=cpu,
        rest_cpu_s=rest,
        rss_mb=round(rss_mb, 1),
        writes=dict(log.kinds),
    )


def run(
    sizes: Sizes, rounds: int, who: tuple[str, ...], *, before: Path | None, profiles: Path | None
) -> list[list[Result]]:
    parts = ("kube-controller-manager", KUBE)
    with Cluster.start(parts=parts, node_lifecycle=False) as cluster, tempfile.TemporaryDirectory() as folder:
        cluster.parts[KUBE].stop()
        stages.install(cluster)
        prepare(cluster)
        cluster.gpu_nodes(sizes.nodes, static=True)
        bench = Bench(cluster, Path(folder), sizes, before=before, profiles=profiles)
        return [list(_round(bench, who, number)) for number in range(rounds)]


def _round(bench: Bench, who: tuple[str, ...], number: int) -> Iterator[Result]:
    order = who if number % 2 == 0 else tuple(reversed(who))
    for each in order:
        result = bench.measure(each)
        print(f"{result.who:15} {json.dumps(asdict(result))}", flush=True)
        yield result


def prepare(cluster: Cluster) -> None:
    api = cluster.api
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": "bench"}})
    cluster.kubectl("apply", "-k", str(CONFIG))
    cluster.kubectl("delete", "deployment", "gpu-scheduler", "-n", SYSTEM)
    deadline = time.monotonic() + 20
    while not api.request("GET", "/api/v1/namespaces/bench/serviceaccounts")["items"]:
        if time.monotonic() > deadline:
            raise TimeoutError("the namespace has no default ServiceAccount after 20 s")
        time.sleep(0.1)


def summary(rounds: list[list[Result]]) -> dict[str, Any]:
    by: dict[str, list[Result]] = {}
    for results in rounds:
        for each in results:
            by.setdefault(each.who, []).append(each)

    def ratio(who: str, of: Callable[[Result], float], to: str = KUBE) -> float | None:
        if who not in by or to not in by:
            return None
        pairs = zip(by[who], by[to], strict=True)
        return round(statistics.median(of(ours) / of(theirs) for ours, theirs in pairs), 2)

    figures: dict[str, Any] = {}
    for who in OURS:
        if who + BEFORE in by:
            figures[f"ratio_{who}_before"] = ratio(who, lambda each: each.bound_per_s, who + BEFORE)
            figures[f"ratio_{who}_before_cpu"] = ratio(who, lambda each: 1 / _used(each.cpu_s), who + BEFORE)
            figures[f"ratio_{who}_before_scheduler_cpu"] = ratio(
                who, lambda each: 1 / _scheduler(each), who + BEFORE
            )
        figures[f"ratio_{who}"] = ratio(who, lambda each: each.bound_per_s)
        figures[f"ratio_{who}_all_writes"] = ratio(who, lambda each: each.done_per_s)
        figures[f"ratio_{who}_cpu"] = ratio(who, lambda each: 1 / _used(each.cpu_s))
        if who in by:
            figures[f"writes_per_pod_{who}"] = statistics.median(each.writes_per_pod for each in by[who])
    if PLAIN in by:
        figures["ratio_plain"] = ratio("lease", lambda each: each.bound_per_s, PLAIN)
        figures["ratio_plain_scheduler_cpu"] = ratio("lease", lambda each: 1 / _scheduler(each), PLAIN)
        figures["ratio_plain_cpu"] = ratio("lease", lambda each: 1 / _used(each.cpu_s), PLAIN)
    if QUEUED in by:
        figures["ratio_queues"] = ratio(QUEUED, lambda each: each.bound_per_s, "lease")
        figures["ratio_queues_cpu"] = ratio(QUEUED, lambda each: 1 / _used(each.cpu_s), "lease")
        figures["ratio_queues_scheduler_cpu"] = ratio(QUEUED, lambda each: 1 / _scheduler(each), "lease")
    figures["pods_per_s"] = {
        who: round(statistics.median(each.bound_per_s for each in them), 1) for who, them in by.items()
    }
    figures["rss_mb"] = max(
        (each.rss_mb for who, them in by.items() if who != KUBE for each in them), default=0
    )
    return figures


def _used(cpu_s: dict[str, float]) -> float:
    return max(sum(cpu_s.values()), TICK_S)


def _scheduler(result: Result) -> float:
    """Return the CPU seconds of the scheduler from its first bind to its last write."""
    return max(result.cpu_s["scheduler"] + result.rest_cpu_s["scheduler"], TICK_S)


def table(rounds: list[list[Result]]) -> None:
    head = (
        f"{'':15}{'bound/s':>9}{'done/s':>9}{'writes':>8}{'api CPU':>9}{'etcd':>7}{'sched':>7}{'RSS MB':>8}"
    )
    print(f"\n{head}")
    for who in (KUBE, *OURS, PLAIN, QUEUED, *(each + BEFORE for each in OURS)):
        them = [each for results in rounds for each in results if each.who == who]
        if them:
            middle = [
                statistics.median(value)
                for value in (
                    [each.bound_per_s for each in them],
                    [each.done_per_s for each in them],
                    [each.writes_per_pod for each in them],
                    [each.cpu_s["kube-apiserver"] for each in them],
                    [each.cpu_s["etcd"] for each in them],
                    [each.cpu_s["scheduler"] for each in them],
                    [each.rss_mb for each in them],
                )
            ]
            widths = (9, 9, 8, 9, 7, 7, 8)
            print(f"{who:15}" + "".join(f"{value:{w}.1f}" for value, w in zip(middle, widths, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--who", default=",".join((KUBE, *OURS)), help=f"contenders, comma-separated; also {PLAIN}, {QUEUED}"
    )
    parser.add_argument("--queues", type=int, default=1000, help=f"GpuQueues of the contender {QUEUED}")
    parser.add_argument("--before", type=Path, metavar="SRC", help="the `src` folder of another checkout")
    parser.add_argument(
        "--profile", type=Path, metavar="FOLDER", help="write cProfile's results of our process there"
    )
    args = parser.parse_args()
    profiles = args.profile.resolve() if args.profile else None
    who, before = tuple(args.who.split(",")), args.before.resolve() if args.before else None
    if before:
        who += tuple(each + BEFORE for each in who if each in OURS)
    sizes = Sizes(args.nodes, args.pods, args.queues)
    results = run(sizes, args.rounds, who, before=before, profiles=profiles)
    table(results)
    load = Path("/proc/loadavg").read_text().split()[0]
    print(json.dumps({"nodes": args.nodes, "pods": args.pods, "load": float(load), **summary(results)}))


if __name__ == "__main__":
    main()
