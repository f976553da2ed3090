"""CPU, memory and operating system of this machine, for the manager's list of workers."""

import os
import platform
from contextlib import suppress
from pathlib import Path

from gpu_orchestrator.api.session import SystemInfo


def read() -> SystemInfo:
    total, available = _memory_mib()
    return SystemInfo(
        cpu=f"{os.cpu_count() or 1}× {_cpu_model()}",
        ram_total_mib=total,
        ram_used_mib=total - available,
        os=f"{platform.system()} {platform.release()}",
    )


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _memory_mib() -> tuple[int, int]:
    with suppress(OSError, KeyError, ValueError):
        lines = [line.split() for line in Path("/proc/meminfo").read_text().splitlines()]
        sizes = {words[0]: int(words[1]) // 1024 for words in lines if len(words) > 1}
        return sizes["MemTotal:"], sizes["MemAvailable:"]
    return 0, 0
