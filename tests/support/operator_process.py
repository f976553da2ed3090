"""The operator as a real process, and a namespace of a real cluster where it has work to do."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4

from controlplane.api import ApiError
from controlplane.cluster import Cluster, free_port
from tests.support import namespaces, quotas, scrapes, warm
from tests.support.paths import ROOT
from tests.support.patience import PATIENCE_S, pause_s
from tests.support.tracebacks import tracebacks
from tests.support.workers import compiled

SYSTEM = "gpu-orchestrator-system"
ACCOUNT = "gpu-orchestrator-controller-manager"
WORKLOADS = "/apis/gpu.warp.dev/v1alpha1/namespaces/{}/gpuworkloads"
FINAL = ("Succeeded", "Failed")
ZONE = "topology.kubernetes.io/zone"

T = TypeVar("T")
Json = dict[str, Any]


def eventually(look: Callable[[], T | None], what: str, timeout_s: float = PATIENCE_S) -> T:
    """Call `look` until it returns something, and return that. Polls, because the API server is outside."""
    deadline = time.monotonic() + timeout_s
    while True:
        looked_at = time.monotonic()
        if found := look():
            return found
        if looked_at > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(pause_s(time.monotonic() - looked_at, 0.03))


class Operator:
    """`gpu-orchestrator operator` as a subprocess. When the block ends it must stop cleanly, and its log must
    contain no traceback. `waits` replaces some of the times that it ships with, see hurried_operator.py."""

    def __init__(self, kubeconfig: Path, *flags: str, log: Path, waits: Json | None = None) -> None:
        self.metrics_port, self.probe_port = free_port(), free_port()
        self.log = log
        self._command = [
            *(_hurried(waits) if waits else (warm.PROGRAM,)),
            "operator",
            f"--kubeconfig={kubeconfig}",
            f"--metrics-bind-address=127.0.0.1:{self.metrics_port}",
            f"--health-probe-bind-address=127.0.0.1:{self.probe_port}",
            "--v=1",
            *flags,
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        with self.log.open("ab") as stderr:
            self.process = warm.Popen(self._command, stderr=stderr, stdout=stderr, env=compiled(), cwd=ROOT)
        return self

    def ready(self) -> Self:
        eventually(lambda: self._get(self.probe_port, "/readyz") == "ok", f"ready; log: {self.log}")
        return self

    def kill(self) -> None:
        """Send SIGKILL, so that it cannot clean up."""
        if self.process:
            self.process.kill()
            self.process.wait(10)

    def pause(self) -> None:
        if self.process:
            self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self.process:
            self.process.send_signal(signal.SIGCONT)

    def wait(self, timeout_s: float) -> int:
        """Wait until it ends by itself, and return its exit code."""
        return self.process.wait(timeout_s) if self.process else 0

    def stop(self) -> int:
        if not self.process:
            return 0
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(20)
        finally:
            self.process.kill()

    def metrics(self) -> dict[str, float]:
        text = eventually(lambda: self._get(self.metrics_port, "/metrics"), f"metrics; log: {self.log}")
        scrapes.check("operator", text)
        lines = text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def lines(self) -> list[Json]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def _get(self, port: int, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def __enter__(self) -> Self:
        return self.start().ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        code = self.stop()
        text = self.log.read_text()
        if kind is None:
            assert code == 0, f"the operator ended with {code}: {text[-2000:]}"
            assert tracebacks(text) == []


def _hurried(waits: Json) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.support.hurried_operator", json.dumps(waits))


class Site:
    """A namespace with its own nodes, and the actions of a user there."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.namespace = cluster, f"op-{uuid4().hex[:8]}"
        self._nodes: list[str] = []
        self._outside: list[str] = []
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})

    def close(self) -> None:
        """Delete all workloads, even without a running operator, so that the next test starts clean."""
        for each in self.request("GET", WORKLOADS.format(self.namespace))["items"]:
            self._let_go(each["metadata"]["name"])
        for name in self._nodes:
            self.delete_node(name)
        for path in self._outside:
            self.request("DELETE", path)
        namespaces.clear(self.cluster, self.namespace)

    def _let_go(self, name: str) -> None:
        with suppress(ApiError):  # it may be deleted meanwhile
            self.delete(name)
            merge = {"content_type": "application/merge-patch+json"}
            self.request("PATCH", self._path(name), {"metadata": {"finalizers": None}}, **merge)

    def request(self, method: str, path: str, body: Json | None = None, **more: Any) -> Json:
        return self.cluster.api.request(method, path, body, **more)

    def nodes(self, count: int, *, prefix: str = "n", **shape: Any) -> list[str]:
        made = self.cluster.gpu_nodes(count, prefix=f"{self.namespace}-{prefix}", **shape)
        self._nodes += made
        return made

    def delete_node(self, name: str) -> None:
        with suppress(ApiError):
            self.request("DELETE", f"/api/v1/nodes/{name}")

    def volume(self, name: str, *, mode: str = "Immediate", zone: str = "") -> Json:
        """Create a PersistentVolume of this zone, if any, and a claim for it, which is bound at once or by
        the first pod. Return the claim as a volume of a pod."""
        whole = f"{self.namespace}-{name}"
        modes = {"accessModes": ["ReadWriteOnce"], "storageClassName": whole}
        kind = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": mode}
        size, claims = {"storage": "1Gi"}, f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims"
        made: Json = {**modes, "capacity": size, "hostPath": {"path": "/data"}}
        if zone:
            there = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}]
            made["nodeAffinity"] = {"required": {"nodeSelectorTerms": there}}
        self._post("/apis/storage.k8s.io/v1/storageclasses", {"metadata": {"name": whole}, **kind})
        self._post("/api/v1/persistentvolumes", {"metadata": {"name": whole}, "spec": made})
        wanted = {**modes, "resources": {"requests": size}}
        self.request("POST", claims, {"metadata": {"name": name}, "spec": wanted})
        if mode == "Immediate":
            claim = f"{claims}/{name}"
            eventually(
                lambda: self.request("GET", claim)["status"].get("phase") == "Bound", f"{name} is bound"
            )
        return {"name": name, "persistentVolumeClaim": {"claimName": name}}

    def allow_high_priority(self) -> None:
        """Label the namespace as an administrator does."""
        body = {"metadata": {"labels": {"gpu.scheduling/allow-high-priority": "true"}}}
        merge = {"content_type": "application/merge-patch+json"}
        self.request("PATCH", f"/api/v1/namespaces/{self.namespace}", body, **merge)

    def limit(self, name: str, hard: dict[str, str]) -> None:
        quotas.limit(self.request, self.namespace, name, hard)

    def _post(self, path: str, body: Json) -> None:
        """Create an object outside the namespace, to be deleted with the site."""
        self.request("POST", path, body)
        self._outside.append(f"{path}/{body['metadata']['name']}")

    def create(self, name: str, *, gpus: int = 1, run_for: str = "", outcome: str = "", **spec: Any) -> Json:
        """Create a workload whose pod runs for `run_for` and ends with `outcome`."""
        annotations = {"sim.gpu-orchestrator/run-for": run_for, "sim.gpu-orchestrator/outcome": outcome}
        template = dict(spec.pop("template", {}))
        template["metadata"] = {"annotations": {key: value for key, value in annotations.items() if value}}
        body = {
            "apiVersion": "gpu.warp.dev/v1alpha1",
            "kind": "GPUWorkload",
            "metadata": {"name": name},
            "spec": {"modelName": name, "gpuCount": gpus, "template": template, **spec},
        }
        return self.request("POST", WORKLOADS.format(self.namespace), body)

    def patch(self, name: str, spec: Json) -> Json:
        return self.request(
            "PATCH", self._path(name), {"spec": spec}, content_type="application/merge-patch+json"
        )

    def delete(self, name: str) -> None:
        self.request("DELETE", self._path(name))

    def get(self, name: str) -> Json | None:
        return self.find(self._path(name))

    def find(self, path: str) -> Json | None:
        try:
            return self.request("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def _path(self, name: str) -> str:
        return f"{WORKLOADS.format(self.namespace)}/{name}"

    def status(self, name: str) -> Json:
        status: Json = (self.get(name) or {}).get("status", {})
        return status

    def until(self, name: str, *phases: str, timeout_s: float = PATIENCE_S) -> Json:
        """Wait until the workload is in one of these phases, and return its status."""

        def look() -> Json | None:
            status = self.status(name)
            return status if status.get("phase") in phases else None

        return eventually(look, f"{name} is {' or '.join(phases)}", timeout_s)

    def gone(self, name: str, timeout_s: float = PATIENCE_S) -> None:
        eventually(lambda: self.get(name) is None, f"{name} is gone", timeout_s)

    def jobs(self) -> list[Json]:
        items: list[Json] = self.request("GET", f"/apis/batch/v1/namespaces/{self.namespace}/jobs")["items"]
        return items

    def pods(self, selector: str = "") -> list[Json]:
        query = f"?labelSelector={selector}" if selector else ""
        items: list[Json] = self.request("GET", f"/api/v1/namespaces/{self.namespace}/pods{query}")["items"]
        return items

    def end(self, model: str, phase: str = "Succeeded", **more: str) -> None:
        """End the pods of this model now, with this phase."""
        for pod in self.pods(f"app={model}"):
            path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}/status"
            done = {"status": {"phase": phase, **more}}
            self.request("PATCH", path, done, content_type="application/merge-patch+json")

    def events(self, name: str) -> list[tuple[str, str]]:
        """Return (reason, note) of the events about a workload, oldest first."""
        path = f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"
        found = [event for event in self.request("GET", path)["items"] if event["regarding"]["name"] == name]
        found.sort(key=lambda event: event["eventTime"] or "")
        return [(event["reason"], event["note"]) for event in found]

    def event(self, name: str, reason: str, words: str = "") -> str:
        """Wait for an event and return its note; the operator writes events in the background."""

        def look() -> str | None:
            return next((note for what, note in self.events(name) if what == reason and words in note), None)

        return eventually(look, f"event {reason} about {name}")
