"""ResourceQuotas that are in force: their controller refuses everything until it has counted."""

import time
from collections.abc import Callable

from controlplane.api import Json

AGAIN_S = 10.0
PATIENCE_S = 180.0


def limit(request: Callable[..., Json], namespace: str, name: str, hard: Json) -> None:
    """Create a quota, and wait until it is counted.

    A controller that did not know a kind yet, because its CRD is new, looks at the quota again only after
    minutes: create it once more.
    """
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    deadline = time.monotonic() + PATIENCE_S
    while True:
        request("POST", path, {"metadata": {"name": name}, "spec": {"hard": hard}})
        if _is_counted(request, f"{path}/{name}"):
            return
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s: quota {name} is counted"
        request("DELETE", f"{path}/{name}")


def _is_counted(request: Callable[..., Json], path: str) -> bool:
    deadline = time.monotonic() + AGAIN_S
    while time.monotonic() < deadline:
        if request("GET", path).get("status", {}).get("used"):
            return True
        time.sleep(0.05)
    return False
