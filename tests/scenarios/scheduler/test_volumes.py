"""Volumes that wait for their first consumer, on a real API server and kube-controller-manager.

The tests play the provisioner: they create a volume for the node that a claim was annotated with, or give up
by removing the annotation, as the provisioners of CSI drivers do.
"""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from controlplane.api import ApiError, Json
from controlplane.cluster import Cluster
from controlplane.process import Process
from tests.support import scheduler_stage as stages
from tests.support.scheduler_stage import Stage, holders, pod, until

SELECTED = "volume.kubernetes.io/selected-node"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
VOLUMES = "/api/v1/persistentvolumes"
PROVISIONER = "disk.example"
SIZE = {"requests": {"storage": "1Gi"}}
MERGE = "application/merge-patch+json"


class Storage:
    """Classes, volumes, claims and pods of one test, with names of its own."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.api, self.nodes = stage, stage.cluster.api, stage.nodes
        self.mark = uuid4().hex[:5]

    def class_of(self, provisioner: str, **more: Any) -> str:
        name = f"class-{self.mark}-{uuid4().hex[:4]}"
        body = {"metadata": {"name": name}, "provisioner": provisioner, **more}
        self.api.request("POST", CLASSES, {"volumeBindingMode": "WaitForFirstConsumer", **body})
        return name

    def volume(self, of: str, node: str, claim: str = "", *, size: str = "2Gi") -> str:
        """Create a volume that this node alone reaches; for a claim, as its provisioner does."""
        name = f"volume-{self.mark}-{uuid4().hex[:4]}"
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        spec: Json = {
            "storageClassName": of,
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "local": {"path": "/data"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        }
        if claim:
            seen = self.claim(claim)["metadata"]
            spec["claimRef"] = {key: seen[key] for key in ("namespace", "name", "uid")}
        self.api.request("POST", VOLUMES, {"metadata": {"name": name}, "spec": spec})
        if not claim:
            # A pod that waits for it may have it at once.
            until(lambda: self.phase(f"{VOLUMES}/{name}") in ("Available", "Bound"), "the volume is offered")
        return name

    def ask(self, name: str, **spec: Any) -> str:
        """Create a pod for one GPU; return its name."""
        full = f"{self.mark}-{name}"
        self.stage.create(pod(full, gpus=1, **spec))
        return full

    def claimed(self, name: str, of: str) -> Json:
        """Create a claim; return what a pod mounts."""
        spec = {"storageClassName": of, "accessModes": ["ReadWriteOnce"], "resources": SIZE}
        self.api.request("POST", self.claims_path, {"metadata": {"name": name}, "spec": spec})
        return {"volumes": [{"name": name, "persistentVolumeClaim": {"claimName": name}}]}

    @property
    def claims_path(self) -> str:
        return f"/api/v1/namespaces/{self.stage.namespace}/persistentvolumeclaims"

    def claim(self, name: str) -> Json:
        return self.api.request("GET", f"{self.claims_path}/{name}")

    def phase(self, path: str) -> str:
        return str(self.api.request("GET", path).get("status", {}).get("phase", ""))

    def selected(self, claim: str) -> str:
        """Wait until the claim is annotated with a node; return it."""

        def node() -> str | None:
            try:
                found = self.claim(claim)["metadata"].get("annotations", {}).get(SELECTED)
            except ApiError:  # of an ephemeral volume, not created yet
                return None
            return str(found) if found else None

        return until(node, f"a node is selected for {claim}")

    def give_up(self, claim: str) -> None:
        body = {"metadata": {"annotations": {SELECTED: None}}}
        self.api.request("PATCH", f"{self.claims_path}/{claim}", body, content_type=MERGE)

    def leases_of(self, uid: str) -> list[str]:
        return [name for name, lease in self.stage.leases().items() if uid in holders(lease)]

    def node_of(self, name: str) -> str:
        return str(self.stage.pod(name)["spec"].get("nodeName", ""))

    def volume_of(self, claim: str) -> str:
        return str(self.claim(claim)["spec"].get("volumeName", ""))


@pytest.fixture(scope="module")
def shared(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One namespace and one scheduler for the tests of this file."""
    stages.install(cluster)
    name = f"volumes-{uuid4().hex[:6]}"
    cluster.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    stage = Stage(cluster, name, tmp_path_factory.mktemp("volumes"), name, f"scheduler-{name}")
    stage.gpu_nodes(3, gpus=8)
    stage.scheduler(leaderElect=False, releaseSeconds=0)
    yield stage
    stage.close()
    cluster.api.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def storage(shared: Stage) -> Iterator[Storage]:
    made = Storage(shared)
    yield made
    if pods := [name for name in shared.pods() if name.startswith(made.mark)]:
        shared.delete(*pods, force=True)


def test_pod_goes_to_the_node_of_the_only_local_volume(storage: Storage) -> None:
    local = storage.class_of("kubernetes.io/no-provisioner")
    volume = storage.volume(local, storage.nodes[1])
    mounted = storage.claimed(f"{storage.mark}-data", local)
    name = storage.ask("p", **mounted)
    storage.stage.wait_bound(name)
    assert storage.node_of(name) == storage.nodes[1]
    assert storage.volume_of(f"{storage.mark}-data") == volume


def test_two_pods_at_once_get_two_volumes(storage: Storage) -> None:
    local = storage.class_of("kubernetes.io/no-provisioner")
    for node in storage.nodes[:2]:
        storage.volume(local, node)
    mounted = [storage.claimed(f"{storage.mark}-{n}", local) for n in range(2)]
    names = [storage.ask(f"p{n}", **mounted[n]) for n in range(2)]
    storage.stage.wait_bound(*names)
    assert {storage.node_of(name) for name in names} == set(storage.nodes[:2])


def test_pod_waits_for_a_volume_and_says_so(storage: Storage) -> None:
    local = storage.class_of("kubernetes.io/no-provisioner")
    name = storage.ask("p", **storage.claimed(f"{storage.mark}-data", local))
    storage.stage.wait_event(name, "no free PersistentVolume of StorageClass")
    storage.volume(local, storage.nodes[2])
    storage.stage.wait_bound(name)
    assert storage.node_of(name) == storage.nodes[2]


def test_volume_is_created_for_the_chosen_node(storage: Storage) -> None:
    cloud = storage.class_of(PROVISIONER)
    name = storage.ask("p", **storage.claimed(f"{storage.mark}-data", cloud))
    node = storage.selected(f"{storage.mark}-data")
    assert not storage.node_of(name)
    volume = storage.volume(cloud, node, f"{storage.mark}-data")
    storage.stage.wait_bound(name)
    assert storage.node_of(name) == node
    assert storage.volume_of(f"{storage.mark}-data") == volume


def test_ephemeral_volume_is_created_with_its_pod(storage: Storage) -> None:
    cloud = storage.class_of(PROVISIONER)
    spec = {"storageClassName": cloud, "accessModes": ["ReadWriteOnce"], "resources": SIZE}
    volumes = [{"name": "tmp", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}]
    name = storage.ask("p", volumes=volumes)
    node = storage.selected(f"{name}-tmp")
    storage.volume(cloud, node, f"{name}-tmp")
    storage.stage.wait_bound(name)
    assert storage.node_of(name) == node


def test_provisioner_that_gives_up_frees_the_device_and_the_pod_says_why(storage: Storage) -> None:
    cloud = storage.class_of(PROVISIONER)
    claim = f"{storage.mark}-data"
    name = storage.ask("p", **storage.claimed(claim, cloud))
    node, uid = storage.selected(claim), storage.stage.pod(name)["metadata"]["uid"]
    (held,) = storage.leases_of(uid)
    assert held.startswith(f"gpu-{node}-")
    storage.give_up(claim)
    storage.stage.wait_event(name, f"could not be created for node {node}; the events of the claim say why")
    # It is tried again, and this time there is a volume.
    again = storage.selected(claim)
    storage.volume(cloud, again, claim)
    storage.stage.wait_bound(name)
    assert len(storage.leases_of(uid)) == 1


def test_deleted_pod_frees_its_device_while_its_volume_is_created(storage: Storage) -> None:
    cloud = storage.class_of(PROVISIONER)
    name = storage.ask("p", **storage.claimed(f"{storage.mark}-data", cloud))
    storage.selected(f"{storage.mark}-data")
    uid = storage.stage.pod(name)["metadata"]["uid"]
    assert len(storage.leases_of(uid)) == 1
    storage.stage.delete(name, force=True)
    until(lambda: not storage.leases_of(uid), "the device is free")


# --- restarts ----------------------------------------------------------------------------------------------


@pytest.fixture
def alone(stage: Stage) -> tuple[Storage, Process]:
    """A stage with a scheduler of its own, to end."""
    stage.gpu_nodes(2, gpus=1)
    return Storage(stage), stage.scheduler(releaseSeconds=0, leaseSeconds=3, renewSeconds=2, retrySeconds=0.2)


def test_restart_goes_on_where_the_last_scheduler_was_killed(alone: tuple[Storage, Process]) -> None:
    storage, scheduler = alone
    cloud = storage.class_of(PROVISIONER)
    name = storage.ask("p", **storage.claimed("data", cloud))
    node = storage.selected("data")
    scheduler.kill()
    storage.volume(cloud, node, "data")
    scheduler.start()
    storage.stage.wait_bound(name, within_s=60)
    assert storage.node_of(name) == node
    until(storage.stage.holds_exactly, "leases match the bound pods")


def test_stop_does_not_wait_for_volumes_and_leaves_no_lease(alone: tuple[Storage, Process]) -> None:
    storage, scheduler = alone
    cloud = storage.class_of(PROVISIONER)
    storage.ask("p", **storage.claimed("data", cloud))
    storage.selected("data")
    scheduler.stop(timeout_s=60)
    assert storage.stage.leases() == {}, (
        "work that does not finish in time is cancelled, and leaves its leases"
    )
