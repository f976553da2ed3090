"""Rules about other pods hold for every decision, and no pod waits that could be placed.

A coordinator with a real engine gets random pods, nodes and namespaces; an oracle over their manifests checks
every node it chooses, and that pods which wait fit nowhere once nothing moves any more.
"""

from collections import Counter
from random import Random
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.api.kubernetes import Namespace, Pod
from gpu_orchestrator.apps.scheduler.actions import BindJob, Bound
from gpu_orchestrator.core.neighbours import Neighbours
from tests.support.examples import cases
from tests.support.neighbour_oracle import REQUIRED, Json, Site
from tests.support.scheduler_harness import World
from tests.support.scheduler_objects import node

NODES = ("a", "b", "c", "d", "e")
NAMESPACES = ("one", "two")
GPUS = 2


class Play:
    """A world of pods that follow rules, and the same as manifests for the oracle."""

    def __init__(self, seed: int) -> None:
        self.rng, self.world, self.site = Random(seed), World(), Site()
        self.pods: dict[str, Json] = {}
        self.ours: set[str] = set()
        self.flying: list[BindJob] = []
        self.seen_jobs, self.versions, self.names = 0, 0, 0
        for name in NAMESPACES:
            self.set_namespace(name)
        for name in NODES[: self.rng.randint(2, len(NODES))]:
            self.set_node(name)

    # --- steps ---------------------------------------------------------------------------------------------

    def step(self) -> None:
        steps = {
            self.create: 8,
            self.create_foreign: 3,
            self.delete: 4,
            self.relabel: 2,
            self.start_deleting: 1,
            self.change_node: 1,
            self.remove_node: 0.5,
            self.change_namespace: 0.5,
            self.land: 5,
        }
        self.rng.choices(list(steps), list(steps.values()))[0]()
        self.check_jobs()

    def create(self) -> None:
        name = self.new_name()
        self.pods[name] = manifest(self.rng, name, scheduler="gpu-scheduler")
        self.ours.add(name)
        self.show(name)

    def create_foreign(self) -> None:
        if self.site.nodes:
            name = self.new_name()
            self.pods[name] = manifest(self.rng, name, scheduler="other")
            self.place(name, self.rng.choice(sorted(self.site.nodes)))
            self.show(name)

    def delete(self) -> None:
        if self.pods:
            name = self.rng.choice(sorted(self.pods))
            gone = self.pods.pop(name)
            if all(job.pod.metadata.name != name for job in self.flying):  # else it holds until it has landed
                self.site.placed.pop(name, None)
                self.ours.discard(name)
                self.world.pod_gone(f"{gone['metadata']['namespace']}/{name}")
                self.world.coordinator.freed(name)
            else:
                self.pods[name] = gone

    def relabel(self) -> None:
        if self.pods and (name := self.rng.choice(sorted(self.pods))) not in self.in_flight():
            self.pods[name]["metadata"]["labels"] = some_labels(self.rng)
            self.show(name)

    def start_deleting(self) -> None:
        placed = [
            name for name in sorted(self.pods) if name in self.site.placed and name not in self.in_flight()
        ]
        if placed:
            name = self.rng.choice(placed)
            self.pods[name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self.show(name)

    def change_node(self) -> None:
        self.set_node(self.rng.choice(NODES))

    def remove_node(self) -> None:
        """Its pods are still known, and count again when it comes back."""
        if self.site.nodes:
            name = self.rng.choice(sorted(self.site.nodes))
            del self.site.nodes[name]
            for change in self.world.nodes.drop(name):
                self.world.coordinator.nodes.on_node(*change)

    def change_namespace(self) -> None:
        while self.flying:  # a pod in flight keeps the meaning that its rules had when it was decided
            self.land()
        self.set_namespace(self.rng.choice(NAMESPACES))

    def land(self) -> None:
        """The bind of the pod that flies longest is answered, and the watch shows it."""
        if self.flying:
            job = self.flying.pop(0)
            self.world.coordinator.done(Bound(job))
            self.check_jobs()
            self.show(job.pod.metadata.name, job)

    # --- what the steps do ---------------------------------------------------------------------------------

    def new_name(self) -> str:
        self.names += 1
        return f"p{self.names}"

    def in_flight(self) -> set[str]:
        return {job.pod.metadata.name for job in self.flying}

    def place(self, name: str, where: str) -> None:
        self.pods[name]["spec"]["nodeName"] = where
        self.site.placed[name] = (self.pods[name], where)

    def show(self, name: str, job: BindJob | None = None) -> None:
        """Let the watch show a pod; one whose bind is not answered yet, as it was before."""
        self.versions += 1
        body = msgspec.json.decode(msgspec.json.encode(self.pods[name]))
        body["metadata"]["resourceVersion"] = str(self.versions)
        if name in self.ours and name in self.site.placed:
            if name in self.in_flight():
                del body["spec"]["nodeName"]
            else:
                body["metadata"]["annotations"]["gpu.scheduling/allocated"] = self.allocated[name]
        self.world.pod(msgspec.convert(body, Pod))

    def set_node(self, name: str) -> None:
        zone = self.rng.choice(["x", "y", "z", ""])
        labels = {"host": name} | ({"zone": zone} if zone else {})
        self.site.nodes[name] = labels
        self.world.node(node(name, GPUS, labels=labels))

    def set_namespace(self, name: str) -> None:
        labels = self.rng.choice([{}, {"team": "red"}])
        self.site.namespaces[name] = labels
        self.versions += 1
        meta = {"name": name, "uid": name, "labels": labels, "resourceVersion": str(self.versions)}
        self.world.namespace(msgspec.convert({"metadata": meta}, Namespace))

    # --- what must hold ------------------------------------------------------------------------------------

    @property
    def allocated(self) -> dict[str, str]:
        jobs = self.world.executor.jobs
        return {
            job.pod.metadata.name: f"{job.placement.node}:{','.join(map(str, job.placement.devices))}"
            for job in jobs
        }

    def check_jobs(self) -> None:
        """Check every new decision, in order, against what was placed before it."""
        for job in self.world.executor.jobs[self.seen_jobs :]:
            name, where = job.pod.metadata.name, job.placement.node
            assert self.site.allows(self.pods[name], where), f"{name} must not go to {where}"
            self.place(name, where)
            self.flying.append(job)
            self.seen_jobs += 1

    def settle(self) -> None:
        while self.flying:
            self.land()
            self.check_jobs()
        for _ in range(100):
            self.world.coordinator.tick()
        self.check_jobs()
        if self.flying:
            self.settle()

    def check_counts(self) -> None:
        """Counts that were kept up to date are what counting again gives."""
        cluster = self.world.coordinator.engine.cluster
        for kind in list(cluster.neighbours._counts):
            kept, again = (
                cluster.neighbours.count(kind, cluster.usage),
                Neighbours().count(kind, cluster.usage),
            )
            assert kept[: len(again)].tolist() == again.tolist(), kind

    def check_waiting(self) -> None:
        taken = Counter(where for name, (_, where) in self.site.placed.items() if name in self.ours)
        for name in sorted(self.ours - set(self.site.placed)):
            pod = self.pods[name]
            if pod["metadata"].get("deletionTimestamp"):
                continue
            fits = [
                where
                for where, labels in self.site.nodes.items()
                if taken[where] < GPUS
                and pod["spec"].get("nodeSelector", {}).items() <= labels.items()
                and self.site.allows(pod, where)
            ]
            assert not fits, f"{name} waits, but could go to {fits}: {self.world.executor.refused.get(name)}"


def manifest(rng: Random, name: str, *, scheduler: str) -> Json:
    annotations = {"gpu.scheduling/gpus": "1"} if scheduler == "gpu-scheduler" else {}
    meta = {"name": name, "namespace": rng.choice(NAMESPACES), "uid": name, "annotations": annotations}
    spec: Json = {"schedulerName": scheduler}
    affinity: Json = {}
    if rng.random() < 0.25:
        affinity["podAffinity"] = {REQUIRED: [a_term(rng) for _ in range(rng.randint(1, 2))]}
    if rng.random() < 0.3:
        affinity["podAntiAffinity"] = {REQUIRED: [a_term(rng) for _ in range(rng.randint(1, 2))]}
    if rng.random() < 0.3:
        spec["topologySpreadConstraints"] = [a_spread(rng) for _ in range(rng.randint(1, 2))]
    if rng.random() < 0.2:
        spec["nodeSelector"] = {"zone": rng.choice("xy")}
    return {
        "metadata": {**meta, "labels": some_labels(rng)},
        "spec": {**spec, "affinity": affinity},
        "status": {},
    }


def some_labels(rng: Random) -> dict[str, str]:
    return {key: rng.choice("ab") for key in ("app", "tier") if rng.random() < 0.6}


def a_term(rng: Random) -> Json:
    term: Json = {"topologyKey": rng.choice(["zone", "host", "nowhere"][: 2 + (rng.random() < 0.1)])}
    if rng.random() < 0.95:
        term["labelSelector"] = a_selector(rng)
    if rng.random() < 0.2:
        term["namespaces"] = [rng.choice(NAMESPACES)]
    if rng.random() < 0.3:
        term["namespaceSelector"] = rng.choice([{}, {"matchLabels": {"team": "red"}}])
    return term


def a_spread(rng: Random) -> Json:
    spread: Json = {
        "topologyKey": rng.choice(["zone", "host"]),
        "whenUnsatisfiable": rng.choice(["DoNotSchedule"] * 4 + ["ScheduleAnyway"]),
        "maxSkew": rng.randint(1, 2),
        "labelSelector": a_selector(rng),
        "nodeAffinityPolicy": rng.choice(["Honor", "Ignore"]),
    }
    if rng.random() < 0.3:
        spread["minDomains"] = rng.randint(1, 4)
    if rng.random() < 0.3 and "tier" not in str(spread["labelSelector"]):
        spread["matchLabelKeys"] = ["tier"]
    return spread


def a_selector(rng: Random) -> Json:
    kind = rng.random()
    if kind < 0.6:
        return {"matchLabels": {rng.choice(["app", "tier"]): rng.choice("ab")}}
    if kind < 0.9:
        operator = rng.choice(["In", "NotIn", "Exists", "DoesNotExist"])
        values = ["a"] if operator in ("In", "NotIn") else []
        return {"matchExpressions": [{"key": "app", "operator": operator, "values": values}]}
    return {}


@cases(120)
@given(seed=st.integers(0, 2**32), length=st.integers(1, 60))
def test_rules_about_other_pods_hold_and_no_pod_waits_in_vain(seed: int, length: int) -> None:
    play = Play(seed)
    for _ in range(length):
        play.step()
    play.settle()
    play.check_waiting()
    play.check_counts()


def test_oracle_and_play_are_not_idle() -> None:
    """Most random worlds have pods that are placed by rules, and pods that wait because of them."""
    said: Counter[str] = Counter()
    placed: list[Any] = []
    for seed in range(40):
        play = Play(seed)
        for _ in range(40):
            play.step()
        placed += [each for each, _ in play.site.placed.values() if each["spec"]["affinity"]]
        for reason in play.world.executor.refused.values():
            said.update(
                word
                for word in ("pod's affinity", "pod's anti-", "other pods' anti-", "spread")
                if word in reason
            )
    assert len(placed) > 50
    assert len(said) == 4, said
