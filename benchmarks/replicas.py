"""The operator as processes to be measured: the leader and a standby."""

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from controlplane.cluster import free_port

START_S = 60.0
BUCKET = r"warp_gpuworkload_reconcile_duration_seconds_bucket"


@dataclass(frozen=True)
class Replica:
    process: "subprocess.Popen[bytes]"
    port: int
    probes: int

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+)", status)
        return int(found[1]) / 1024 if found else 0.0

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def reconcile_p99_s(self) -> float:
        """Return the p99 of passes that wrote something, from the histogram, interpolated inside a bucket."""
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10).read().decode()
        found = re.findall(rf'{BUCKET}{{le="([^"]+)",result="done"}} (\S+)', text)
        return _quantile([(float(le), float(count)) for le, count in found], 0.99)

    def profile(self, file: Path, seconds: float) -> None:
        url = f"http://127.0.0.1:{self.port}/debug/profile?seconds={max(1, round(seconds))}"
        file.write_bytes(urllib.request.urlopen(url, timeout=seconds + 60).read())

    def is_ready(self) -> bool:
        with suppress(OSError):
            answer = urllib.request.urlopen(f"http://127.0.0.1:{self.probes}/readyz", timeout=10)
            return bool(answer.status == 200)
        return False

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the operator did not become ready within {START_S:.0f} s")
            time.sleep(0.1)


@contextmanager
def pair(kubeconfig: Path, source: str = "") -> Iterator[tuple[Replica, Replica]]:
    """Yield the leader and its standby. `source`: a folder with the code to run; by default this one's."""
    with ExitStack() as stack:
        leader = stack.enter_context(_replica(kubeconfig, source))
        yield leader, stack.enter_context(_replica(kubeconfig, source))


@contextmanager
def _replica(kubeconfig: Path, source: str) -> Iterator[Replica]:
    port, probes = free_port(), free_port()
    command = [
        sys.executable,
        "-m",
        "gpu_orchestrator",
        "operator",
        f"--kubeconfig={kubeconfig}",
        f"--metrics-bind-address=127.0.0.1:{port}",
        f"--health-probe-bind-address=127.0.0.1:{probes}",
    ]
    environment = {**os.environ, **({"PYTHONPATH": source} if source else {})}
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)
    try:
        made = Replica(process, port, probes)
        made.wait_ready()
        yield made
    finally:
        process.terminate()
        process.wait(20)


def _quantile(buckets: list[tuple[float, float]], part: float) -> float:
    wanted, low, below = buckets[-1][1] * part, 0.0, 0.0
    for high, count in buckets:
        if count >= wanted:
            inside = (wanted - below) / (count - below) if count > below else 1.0
            return low + (min(high, 2 * low or high) - low) * inside
        low, below = high, count
    return low
