"""A stage for the gpu-scheduler: CRDs and a namespace in a cluster, real scheduler processes, builders for
pods and claims, and waiting for conditions."""

import functools
import http.client
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
import yaml

from controlplane.api import ApiError, Json
from controlplane.cluster import Cluster, free_port
from controlplane.process import Process
from gpu_orchestrator.api import admission, capacity, crds, names
from gpu_orchestrator.api.devices import Devices
from tests.support import warm, yaml_text
from tests.support.paths import ROOT
from tests.support.patience import PATIENCE_S, pause_s
from tests.support.tracebacks import tracebacks
from tests.support.workers import compiled

T = TypeVar("T")

SYSTEM = names.NAMESPACE
CLAIMS = "/apis/gpu.scheduling/v1/namespaces/{}/gpuclaims"
POD_GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/{}/podgroups"
QUEUES = "/apis/gpu.scheduling/v1/gpuqueues"
REPORTS = "/apis/gpu.scheduling/v1/gpunodestatuses"
WORKLOADS = "/apis/gpu.warp.dev/v1alpha1/gpuworkloads"
EXAMPLES = ROOT / "examples"
MEMORY_MIB = 81_920
"""Of the devices that the nodes of these tests have."""
REFUSE = {"requireDeviceEnv": "Refuse", "requireCapacity": "Refuse", "guardedAnnotations": True}
"""As in config/scheduler/settings.yaml."""


def pod(name: str, **spec: Any) -> Json:
    """Return a pod. These arguments become annotations: `claim=`, `claim_template=`, `gpus=`, `strategy=`."""
    given = {word: spec.pop(word) for word in ("claim", "claim_template", "gpus", "strategy") if word in spec}
    annotations = {f"gpu.scheduling/{word.replace('_', '-')}": str(value) for word, value in given.items()}
    container = {"name": "main", "image": "busybox", "resources": spec.pop("resources", {})}
    meta = {"name": name, "annotations": annotations | spec.pop("annotations", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta | spec.pop("meta", {}),
        "spec": {"containers": [container], **spec},
    }


def claim(name: str, count: int = 1, *, topology: Json | None = None, **devices: Any) -> Json:
    spec: Json = {"devices": {"count": count, **devices}}
    if topology:
        spec["topology"] = topology
    return {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": name}, "spec": spec}


def pod_group(name: str, least: int, **spec: Any) -> Json:
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": least}}, **spec},
    }


def example(name: str) -> list[Json]:
    """Return the objects of one of the shipped examples."""
    return yaml_text.load_all((EXAMPLES / name).read_text())


def install(cluster: Cluster) -> None:
    """Create the CRDs and our namespace, once per cluster."""
    if cluster.folder in _installed and _is_served(cluster):
        return
    for made in _definitions():
        _create(cluster, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", made)
    _create(cluster, "/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
    until(lambda: _is_served(cluster), "the CRDs are served")
    _installed.add(cluster.folder)


_installed: set[Path] = set()
"""The folders of clusters that have our kinds."""


@functools.cache
def _definitions() -> list[Json]:
    made = map(yaml_text.load, crds.files().values())
    return [each for each in made if each.get("kind") == "CustomResourceDefinition"]


def _create(cluster: Cluster, path: str, body: Json) -> None:
    try:
        cluster.api.request("POST", path, body)
    except ApiError as error:
        if error.status != 409:
            raise


def _is_served(cluster: Cluster) -> bool:
    try:
        return all(
            cluster.api.request("GET", path)
            for path in (CLAIMS.format("default"), REPORTS, QUEUES, WORKLOADS)
        )
    except ApiError:
        return False


def until(condition: Callable[[], T | None], description: str, within_s: float = PATIENCE_S) -> T:
    """Wait until the condition returns something true; return that."""
    deadline = time.monotonic() + within_s
    while True:
        looked_at = time.monotonic()
        if found := condition():
            return found
        assert looked_at < deadline, f"not within {within_s:.0f} s: {description}"
        time.sleep(pause_s(time.monotonic() - looked_at, 0.05))


@dataclass
class Stage:
    """Objects of one namespace, and the schedulers that serve it. `close` stops the schedulers.

    `account` is the kubeconfig of the schedulers. In a `closed` namespace the policies are in force: the
    scheduler refuses what it ships with, and pods are created with what the webhook would fill in."""

    cluster: Cluster
    namespace: str
    folder: Path
    system: str = SYSTEM
    scheduler_name: str = names.SCHEDULER
    running: list[Process] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    static: bool = False
    account: Path | None = None
    closed: bool = False

    @property
    def kubeconfig(self) -> Path:
        """Return that of the account, or of an administrator if the stage has none."""
        return self.account or self.cluster.kubeconfig

    @property
    def leases_path(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.system}/leases"

    @property
    def pods_path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def scheduler(self, *flags: str, kubeconfig: Path | None = None, **settings: Any) -> Process:
        """Start a scheduler process; `settings` are written to its file."""
        number, probes = len(self.running), free_port()
        values = {
            "kubeconfig": str(kubeconfig or self.kubeconfig),
            "schedulerName": self.scheduler_name,
            "namespace": self.system,
            "metricsBindAddress": "0",
            "healthProbeBindAddress": f"127.0.0.1:{probes}",
            **(REFUSE if self.closed else {}),
            **settings,
        }
        file = self.folder / f"scheduler-{number}.yaml"
        file.write_text(yaml.safe_dump(values))
        command = [sys.executable, "-m", "gpu_orchestrator", "scheduler", f"--config={file}", *flags]
        started = Process(
            f"scheduler-{number}", command, self.folder, compiled(), lambda: _answers(probes), warm.Popen
        )
        self.running.append(started)
        started.start()
        return started

    def gpu_nodes(self, count: int = 1, *, prefix: str = "", **shape: Any) -> list[str]:
        """Create nodes that only this stage's pods select."""
        labels = {"stage": self.namespace, **shape.pop("labels", {})}
        shape |= {"static": self.static, "prefix": prefix or self.namespace}
        made = self.cluster.gpu_nodes(count, labels=labels, **shape)
        self.nodes += made
        return made

    def create(self, *objects: Json, threads: int = 8) -> list[Json]:
        """Create pods and claims in this namespace; pods get this stage's scheduler and nodes."""
        for each in objects:
            if each["kind"] == "Pod":
                each["spec"].setdefault("schedulerName", self.scheduler_name)
                each["spec"]["nodeSelector"] = {
                    "stage": self.namespace,
                    **each["spec"].get("nodeSelector", {}),
                }
        if self.closed:
            known = {each["metadata"]["name"]: each for each in objects if each["kind"] == "GpuClaim"}
            objects = tuple(self._filled(each, known) for each in objects)
        return self.cluster.api.in_parallel(self._create, objects, threads=threads)

    def _filled(self, body: Json, claims: dict[str, Json]) -> Json:
        """Return a claimed pod as the webhook makes it, anything else as it is."""
        match admission.asked(body) if body["kind"] == "Pod" else None:
            case admission.WholeGpus(count):
                return admission.filled(body, 1000 * count)
            case admission.NamedClaim(name):
                found = claims.get(name) or self.claim(name)
                wish = msgspec.convert(found["spec"]["devices"], Devices)
                return admission.filled(body, capacity.milligpu(wish, wish.count, largest_mib=MEMORY_MIB))
            case _:
                return body

    def _create(self, body: Json) -> Json:
        paths = {"Pod": self.pods_path, "PodGroup": POD_GROUPS.format(self.namespace)}
        return self.cluster.api.request("POST", paths.get(body["kind"], CLAIMS.format(self.namespace)), body)

    def pod_group(self, name: str) -> Json:
        return self.cluster.api.request("GET", f"{POD_GROUPS.format(self.namespace)}/{name}")

    def pods(self) -> dict[str, Json]:
        items = self.cluster.api.request("GET", self.pods_path)["items"]
        return {each["metadata"]["name"]: each for each in items}

    def pod(self, name: str) -> Json:
        return self.cluster.api.request("GET", f"{self.pods_path}/{name}")

    def claims(self) -> dict[str, Json]:
        items = self.cluster.api.request("GET", CLAIMS.format(self.namespace))["items"]
        return {each["metadata"]["name"]: each for each in items}

    def claim(self, name: str) -> Json:
        return self.cluster.api.request("GET", f"{CLAIMS.format(self.namespace)}/{name}")

    def patch(self, name: str, change: Json) -> None:
        """Change a pod by a merge patch."""
        path, merge = f"{self.pods_path}/{name}", "application/merge-patch+json"
        self.cluster.api.request("PATCH", path, change, content_type=merge)

    def delete(self, *pods: str, force: bool = False) -> None:
        body = {"gracePeriodSeconds": 0} if force else None
        paths = [{"path": f"{self.pods_path}/{name}"} for name in pods]
        self.cluster.api.in_parallel(
            lambda each: self.cluster.api.request("DELETE", each["path"], body), paths, threads=4
        )

    def leases(self) -> dict[str, Json]:
        """Return all device leases by name."""
        found = self.cluster.api.request(
            "GET", f"{self.leases_path}?labelSelector=gpu.scheduling/managed=true"
        )
        return {each["metadata"]["name"]: each for each in found["items"]}

    def holds_exactly(self) -> bool:
        """Return True if the leases name the devices of bound pods, all of them and nothing else."""
        named = {
            (f"gpu-{each['spec']['nodeName']}-{device}", each["metadata"]["uid"])
            for each in self.pods().values()
            if each["spec"].get("nodeName")
            for device in each["metadata"]["annotations"]["gpu.scheduling/allocated"]
            .rpartition(":")[2]
            .split(",")
            if device
        }
        held = {(name, uid) for name, lease in self.leases().items() for uid in holders(lease)}
        return named == held

    def bound(self, names: Iterable[str] | None = None) -> dict[str, str]:
        """Return the devices of each pod that has a node, as `node:ids`."""
        found = devices_of_bound(self.pods())
        return found if names is None else {name: found[name] for name in set(names) & set(found)}

    def wait_bound(self, *names: str, within_s: float = PATIENCE_S) -> dict[str, str]:
        """Wait until these pods are bound; all pods of the namespace if none is named."""

        def all_bound() -> dict[str, str] | None:
            pods = self.pods()
            found = devices_of_bound(pods)
            wanted = names or tuple(pods)
            return {name: found[name] for name in wanted} if set(wanted) <= set(found) else None

        try:
            return until(all_bound, "the pods are bound", within_s)
        except AssertionError as error:
            left = sorted(set(names or self.pods()) - set(self.bound()))
            events = {name: self.events(name) for name in left[:5]}
            raise AssertionError(f"{error}; not bound: {left}; {events}\n{self.last_words()}") from None

    def events(self, about: str) -> list[str]:
        """Return the notes of the events about one object, in the order they were created."""
        path = f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"
        found = self.cluster.api.request("GET", f"{path}?fieldSelector=regarding.name={about}")["items"]
        return [f"{each['reason']}: {each.get('note', '')}" for each in found]

    def wait_event(self, about: str, text: str, within_s: float = PATIENCE_S) -> str:
        def found() -> str | None:
            return next((note for note in self.events(about) if text in note), None)

        try:
            return until(found, text, within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; events: {self.events(about)}\n{self.last_words()}") from None

    def report(
        self, node: str, devices: Iterable[Mapping[str, Any]], *, live: bool = True, **more: Any
    ) -> None:
        """Publish a node's report as its agent would, with its heartbeat."""
        body: Json = {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuNodeStatus",
            "metadata": {"name": node},
            "spec": {"nodeName": node},
        }
        _create(self.cluster, REPORTS, body)
        status = {"devices": [dict(each) for each in devices], **more}
        self.cluster.api.request(
            "PATCH",
            f"{REPORTS}/{node}/status",
            {"status": status},
            content_type="application/merge-patch+json",
        )
        if live:
            self.heartbeat(node)

    def heartbeat(self, node: str) -> None:
        name, now = f"gpu-agent-{node}", time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
        body = {"metadata": {"name": name}, "spec": {"holderIdentity": node, "renewTime": now}}
        _create(self.cluster, self.leases_path, body)
        self.cluster.api.request(
            "PATCH",
            f"{self.leases_path}/{name}",
            {"spec": body["spec"]},
            content_type="application/merge-patch+json",
        )

    def last_words(self) -> str:
        return "\n".join(
            f"--- {each.name}\n{each.last_words(25)}" for each in self.running if each.log.exists()
        )

    def close(self) -> None:
        for each in self.running:
            each.stop()
        for node in self.nodes:
            self.cluster.api.request("DELETE", f"/api/v1/nodes/{node}")
        for each in self.running:
            broken = tracebacks(each.log.read_text()) if each.log.exists() else []
            assert not broken, f"{each.name} had a traceback: {broken[0][:3000]}"


def devices_of_bound(pods: Mapping[str, Json]) -> dict[str, str]:
    return {
        name: each["metadata"].get("annotations", {}).get("gpu.scheduling/allocated", "")
        for name, each in pods.items()
        if each["spec"].get("nodeName")
    }


def devices(count: int, *, uuids: bool = True, **more: Any) -> list[Json]:
    """Return healthy, equal devices for a report."""
    common = {"health": "Healthy", "vendor": "nvidia", "model": "A100", "memoryMiB": MEMORY_MIB, **more}
    mark = uuid4().hex[:8]
    return [{"id": n, **({"uuid": f"GPU-{mark}-{n}"} if uuids else {}), **common} for n in range(count)]


def holders(lease: Json) -> set[str]:
    """Return the UIDs of all holders of a device."""
    listed = lease["metadata"].get("annotations", {}).get("gpu.scheduling/holders")
    return {each["uid"] for each in json.loads(listed)} if listed else {lease["spec"]["holderIdentity"]}


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
