"""One run of `kube_parse` with our client: pages from a folder into the store of a watch."""

import json
import sys
import time
from pathlib import Path

from gpu_orchestrator.adapters.kube.informer.interning import intern_strings
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.adapters.kube.transport import codec
from gpu_orchestrator.api.kubernetes import PODS, Pod
from gpu_orchestrator.api.wire import key


def main(folder: Path) -> None:
    codec.decoder(codec.Page[Pod])
    store: Store[Pod] = Store()
    before, seconds = resident_mb(), 0.0
    for path in sorted(folder.glob("*.json")):
        text = path.read_bytes()
        start = time.perf_counter()
        page = codec.decode_page(PODS, text)
        for obj in page.items or ():
            intern_strings(obj)
            store.put(obj)
        seconds += time.perf_counter() - start
        del text, page
    first = next(iter(store))
    assert key(first) in store
    assert first.spec.node_name
    print(json.dumps({"seconds": seconds, "memory_mb": resident_mb() - before, "objects": len(store)}))


def resident_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
