"""A cluster with the users and objects of the tables, and the phases in which the tables are tried.

All requests of a phase are dry runs, many at once: a phase of some hundred takes seconds.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from controlplane.api import Api, ApiError
from controlplane.cluster import ADMIN, Cluster
from gpu_orchestrator.api import names
from gpu_orchestrator.api.admission_policies import capacity, claimed_pods, components, written_by_us
from tests.forgery import changes, creations, kinds, legitimate, pods, ports, queues
from tests.forgery.calls import NEIGHBOUR, PODS, SYSTEM, TEAM, TENANT, Call, Json, Outcome, create
from tests.support import quotas
from tests.support.paths import ROOT
from tests.support.scheduler_stage import until

CONFIG = ROOT / "config"
BARE, POLICY = "only the mutating policy", "mutating policy and policies"
DOWN, WEBHOOK = "policies alone", "webhook and policies"
THREADS = 8

PROBES = {
    written_by_us.ANSWERS.name: "F1 plain pod with gpu.scheduling/allocated=all",
    written_by_us.ASKS.name: "F8 plain asks by gpu.scheduling/claim",
    written_by_us.BINDINGS.name: "F4 plain bound by pods/binding",
    written_by_us.POD_STATUS.name: "F1 bound seems Succeeded",
    written_by_us.FORCED.name: "F1 bound deleted by force",
    written_by_us.FORCED_EVICTIONS.name: "F1 bound evicted by force",
    written_by_us.CLAIMS.name: "F8 claim made with the finalizer",
    written_by_us.WORKLOADS.name: "F8 workload made with the finalizer",
    claimed_pods.CLAIMED_PODS.name: "F2 gpus pod for volcano",
    claimed_pods.CONFINED_PODS.name: "F7 hostPID",
    claimed_pods.LATE_CONTAINERS.name: "F7 bound with a privileged debugger",
    claimed_pods.LATE_ANNOTATIONS.name: "F11 bound annotated with cdi.k8s.io/gpu",
    capacity.UNCLAIMED.name: "F11 plain pod that counts",
    capacity.CLAIMED.name: "F8 claim that is not there",
    components.LEASES.name: "F8 editor frees a device",
    components.REPORTS.name: "F13 agent of gpu-node-0 deletes gpu-node-1",
    components.NODES.name: "F13 agent of gpu-node-0 counts gpu-node-1",
    components.OWN_PODS.name: "F7 pod of ours with hostPID",
    components.PRIORITY.name: "F10 plain pod of high priority",
    components.WORKLOAD_PRIORITY.name: "F10 workload of high priority",
}
"""For each policy, a forgery that it alone refuses."""


def forgeries() -> list[Call]:
    return [*creations.calls(), *changes.calls(), *kinds.calls(), *queues.calls()]


def expectations(*, is_filled: bool) -> list[Call]:
    """Return what must pass. `is_filled`: claimed pods come with all that they need."""
    claimed = (create(name, pods.filled(pod) if is_filled else pod) for name, pod in legitimate.claimed())
    return [
        *legitimate.unclaimed(),
        *claimed,
        *legitimate.changes_(),
        *legitimate.processes(),
        *legitimate.kinds_(),
        *queues.legitimate(),
    ]


@dataclass
class Play:
    cluster: Cluster
    users: dict[str, Api] = field(default_factory=dict)
    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    knocks: list[tuple[ports.Knock, int, str]] = field(default_factory=list)

    def prepare(self) -> None:
        """Create the users, the namespaces and the objects that the tables name, before any policy."""
        self.kubectl("apply", "-k", "local")
        self.kubectl("apply", "-k", "rbac", "-k", "scheduler")
        self.cluster.kubectl("delete", "deployment", names.SCHEDULER, "-n", SYSTEM, "--cascade=foreground")
        self.cluster.gpu_nodes(3, labels={"nvidia.com/gpu.memory": "81920"})
        for name in (TEAM, NEIGHBOUR, "rich", "hidden", *kinds.QUOTAS):
            self.admin("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        self._label("rich", {names.ALLOW_HIGH_PRIORITY: "true"})
        self._label("hidden", {names.HIDE_GPUS: "true"})
        self._grant()
        self._identify()
        self._furnish()

    def close(self) -> None:
        for each in self.users.values():
            each.close()

    def kubectl(self, verb: str, *words: str) -> None:
        """Run kubectl on folders of config: `kubectl("apply", "-k", "policy")`."""
        for folder in words[1::2]:
            self.cluster.kubectl(verb, "-k", str(CONFIG / folder))

    def admin(self, method: str, path: str, body: Any = None) -> Json:
        return self.cluster.api.request(method, path, body)

    def as_(self, user: str, method: str, path: str, body: Any) -> Json:
        return self.users[user].request(method, path, body)

    # --- phases -----------------------------------------------------------------------------------------

    def run(self, phase: str, calls: Iterable[Call]) -> None:
        """Try all calls, and keep what came of them."""
        wanted = list(calls)
        with ThreadPoolExecutor(THREADS) as pool:
            results = list(pool.map(self.attempt, wanted))
        self.outcomes.setdefault(phase, {}).update(zip((each.id for each in wanted), results, strict=True))

    def attempt(self, call: Call) -> Outcome:
        api = self.users[call.user]
        try:
            return Outcome(api.request(call.method, call.url, call.body, content_type=call.content_type))
        except ApiError as error:
            return Outcome(None, str(error), error.status)

    def await_policies(self) -> None:
        """Wait until the API server obeys each of the policies: it learns of them one after the other."""
        calls = {call.id: call for call in forgeries()}

        def waiting() -> list[str]:
            return [name for name, id_ in PROBES.items() if f"'{name}'" not in self.attempt(calls[id_]).why]

        until(lambda: not waiting(), "each policy is obeyed", 60)

    def await_filling(self, *, is_on: bool) -> None:
        """Wait until claimed pods are filled in, or are not any more."""

        def is_so() -> bool:
            claimed = [self.attempt(create("probe", pods.bare(ask))) for ask in pods.ASKS]
            filled = [bool(each.answer and counted(each.answer)) for each in claimed]
            late = self.attempt(changes.late("probe", changes.WAITING, {}, "")).answer
            debuggers = late["spec"]["ephemeralContainers"] if late else [{}]
            hidden = self.attempt(
                Call("probe", "POST", PODS.replace(TEAM, "hidden"), pods.plain(), user=ADMIN)
            )
            blind = bool(hidden.answer and "env" in hidden.answer["spec"]["containers"][0])
            return {*filled, blind, "env" in debuggers[0]} == {is_on}

        until(is_so, f"filling in is {'on' if is_on else 'off'}", 60)

    # --- users and objects ------------------------------------------------------------------------------

    def _label(self, namespace: str, labels: dict[str, str]) -> None:
        path = f"/api/v1/namespaces/{namespace}"
        body = {"metadata": {"labels": labels}}
        self.cluster.api.request("PATCH", path, body, content_type="application/merge-patch+json")

    def _grant(self) -> None:
        """Give the tenant the role edit, and more, so that the cases are not empty; and an agent its own."""
        write = ["create", "update", "patch", "get"]
        subresources = ["pods/status", "pods/binding", "bindings", "pods/resize", "pods/ephemeralcontainers"]
        rules = [
            {"apiGroups": [""], "resources": [*subresources, "pods/eviction"], "verbs": write},
            {"apiGroups": ["gpu.scheduling"], "resources": ["gpuclaims/status"], "verbs": write},
            {"apiGroups": ["gpu.warp.dev"], "resources": ["gpuworkloads/status"], "verbs": write},
        ]
        roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{TEAM}"
        self.admin("POST", f"{roles}/roles", {"metadata": {"name": "more"}, "rules": rules})
        for kind, name in (("ClusterRole", "edit"), ("Role", "more")):
            self.admin("POST", f"{roles}/rolebindings", _bound(kind, name, _user(TENANT)))
        for name in kinds.QUOTAS:
            there = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{name}/rolebindings"
            self.admin("POST", there, _bound("ClusterRole", "edit", _user(TENANT)))
        agent = {"kind": "ServiceAccount", "name": names.AGENT, "namespace": SYSTEM}
        everything = ["create", "update", "patch", "get", "delete"]
        reports = ["gpunodestatuses", "gpunodestatuses/status"]
        rules = [
            {"apiGroups": ["gpu.scheduling"], "resources": reports, "verbs": everything},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": everything},
            {"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": everything},
        ]
        cluster = "/apis/rbac.authorization.k8s.io/v1"
        self.admin("POST", f"{cluster}/clusterroles", {"metadata": {"name": "agent"}, "rules": rules})
        updates = [{"apiGroups": [""], "resources": ["pods/status"], "verbs": ["update"]}]
        self.admin("POST", f"{cluster}/clusterroles", {"metadata": {"name": "status"}, "rules": updates})
        for name, subject in (
            ("edit", _user(kinds.EDITOR)),
            ("agent", agent),
            ("status", _user(legitimate.READINESS)),
        ):
            self.admin("POST", f"{cluster}/clusterrolebindings", _bound("ClusterRole", name, subject))

    def _identify(self) -> None:
        accounts = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts"
        self.admin("POST", accounts, {"metadata": {"name": names.AGENT}})
        node = self.admin("GET", f"/api/v1/nodes/{changes.NODE}")["metadata"]
        here = {"apiVersion": "v1", "kind": "Node", "name": node["name"], "uid": node["uid"]}
        for user, account, bound in (
            (kinds.SCHEDULER, names.SCHEDULER, None),
            (kinds.OPERATOR, names.OPERATOR, None),
            (kinds.AGENT_HERE, names.AGENT, here),
            (kinds.AGENT_NOWHERE, names.AGENT, None),
        ):
            made = self.admin("POST", f"{accounts}/{account}/token", {"spec": {"boundObjectRef": bound}})
            token = made["status"]["token"]
            self.users[user] = Api(self.cluster.url, self.cluster.authority, token=token)
        people = {
            TENANT: (),
            kinds.EDITOR: (),
            legitimate.KUBELET: ("system:nodes",),
            legitimate.KUBE_SCHEDULER: (),
            legitimate.READINESS: (),
        }
        for user, groups in people.items():
            pair = self.cluster.authority.client(user, groups)
            self.users[user] = Api(self.cluster.url, self.cluster.authority, pair)
        self.users[ADMIN] = self.cluster.api

    def _furnish(self) -> None:
        """Create the pods, claims, workloads, leases and reports that the tables name."""
        probe = Call("", "POST", kinds.CLAIMS, kinds.claim("probe"))
        until(lambda: self.attempt(probe).answer, "the roles of our kinds are added up", 60)
        # Its quotas count the kinds that it finds when it starts. For new ones it looks every 30 s only.
        self.cluster.parts["kube-controller-manager"].restart()
        until(lambda: self.attempt(create("", pods.plain())).answer, "the namespace takes pods", 60)
        for name, spec in pods.CLAIMS.items():
            for space in (TEAM, kinds.FEW):
                self.admin("POST", kinds.CLAIMS.replace(TEAM, space), {**kinds.claim(name), "spec": spec})
        self._limit()
        some = {"containers": [pods.container(resources={"requests": {"cpu": "1"}})]}
        for name in (changes.BOUND, changes.WAITING):
            self.admin("POST", PODS, pods.ready("gpus", name, **some))
        self.admin("POST", PODS, pods.ready("claim", changes.NAMED, **some))
        self.admin(
            "POST", PODS, pods.plain(changes.PLAIN, schedulerName="nobody", annotations={"a": "b"}, **some)
        )
        given = changes.binding(changes.BOUND, annotations=changes.ANSWER)
        self.as_(kinds.SCHEDULER, "POST", f"{PODS}/{changes.BOUND}/binding", given)
        uid = self.admin("GET", f"{PODS}/{changes.BOUND}")["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": changes.BOUND, "uid": uid}
        marks = {"labels": {names.POD_UID: uid}, "annotations": {names.LEASE_POD: changes.BOUND}}
        used = kinds.claim(kinds.USED, finalizers=[names.CLAIM_FINALIZER], ownerReferences=[owner], **marks)
        self.as_(kinds.SCHEDULER, "POST", kinds.CLAIMS, used)
        self.admin(
            "POST", kinds.WORKLOADS, kinds.workload(kinds.WORKLOAD, finalizers=[names.WORKLOAD_FINALIZER])
        )
        for name, is_device in (("gpu-gpu-node-0-0", True), ("gpu-scheduler.gpu.scheduling", False)):
            self.admin("POST", kinds.LEASES, kinds.lease(name, managed=is_device))
        self.admin("POST", kinds.REPORTS, kinds.report("gpu-node-1"))
        self.admin("POST", kinds.CLAIMS.replace(TEAM, NEIGHBOUR), kinds.claim("theirs"))
        for name, space in ((queues.OURS, TEAM), (queues.THEIRS, NEIGHBOUR)):
            self.admin("POST", queues.QUEUES, queues.queue(name, space))

    def _limit(self) -> None:
        for space, made in kinds.QUOTAS.items():
            for name, hard in made.items():
                quotas.limit(self.admin, space, name, hard)


def counted(pod: Json) -> bool:
    """Return True if the pod's first container requests our resource."""
    requests: dict[str, str] = pod["spec"]["containers"][0].get("resources", {}).get("requests", {})
    return names.MILLIGPU in requests


def _user(name: str) -> Json:
    return {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": name}


def _bound(kind: str, role: str, subject: Json) -> Json:
    return {
        "metadata": {"name": f"{role}-{subject['name']}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [subject],
    }


Check = Callable[[Call, Outcome], str]


def complaints(calls: Iterable[Call], outcomes: dict[str, Outcome], check: Check) -> dict[str, str]:
    """Return what `check` finds wrong, by the name of the call."""
    return {call.id: why for call in calls if (why := check(call, outcomes[call.id]))}
