"""One run of `kube_parse` with the official client, in its own environment, without any of our code."""

import json
import sys
import time
from pathlib import Path
from typing import Any


def main(folder: Path) -> None:
    from kubernetes import client  # type: ignore[import-not-found, unused-ignore]

    api = client.ApiClient()
    held: list[Any] = []
    before, seconds = resident_mb(), 0.0
    for path in sorted(folder.glob("*.json")):
        text = path.read_text()
        start = time.perf_counter()
        held += api.deserialize(text, "V1PodList", "application/json").items
        seconds += time.perf_counter() - start
        del text
    assert held[0].spec.node_name
    print(json.dumps({"seconds": seconds, "memory_mb": resident_mb() - before, "objects": len(held)}))


def resident_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
