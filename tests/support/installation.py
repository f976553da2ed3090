"""What `config/default` installs, created object by object: without Deployments and the DaemonSet, whose
processes the tests run themselves, and much faster than by kubectl.

The policies hold in the namespaces that a selector names, so that a cluster has room for tests of the parts
behind them, too: what the gpu-scheduler makes of forged objects is tested where the policies let them in.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

from controlplane import webhooks
from controlplane.api import ApiError, Json
from controlplane.cluster import Cluster
from gpu_orchestrator.api import names
from tests.support import yaml_text
from tests.support.operator_process import eventually
from tests.support.paths import ROOT
from tests.support.webhook_process import SelfMadeWebhook, Webhook

CONFIG = ROOT / "config"
SYSTEM = names.NAMESPACE
LABEL = "tests.gpu-orchestrator/admission"
CLOSED: Json = {LABEL: "closed"}
OPEN: Json = {LABEL: "open"}
ONLY_CLOSED: Json = {"matchLabels": CLOSED}
ALL_BUT_OPEN: Json = {"matchExpressions": [{"key": LABEL, "operator": "NotIn", "values": ["open"]}]}
ACCOUNT = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
NOT_CREATED = ("Deployment", "DaemonSet", "PodDisruptionBudget", "NetworkPolicy")
RBAC = "rbac.authorization.k8s.io"
PREFIX = f"system:serviceaccount:{SYSTEM}:"

_installed: set[str] = set()


def install(cluster: Cluster, where: Json, *, without: Iterable[str] = ()) -> None:
    """Create all of config/default, once per cluster, with policies for the namespaces `where` selects."""
    if cluster.url in _installed:
        return
    left_out = {f"../{each}" for each in without}
    listed = yaml_text.load((CONFIG / "default" / "kustomization.yaml").read_text())["resources"]
    folders = [CONFIG / "default" / each for each in listed if each not in left_out]
    made = [limited(each, where) for folder in folders for each in documents(folder)]
    for each in made:
        create(cluster, each)
    await_rights(cluster, made)
    _installed.add(cluster.url)


def documents(folder: Path) -> Iterator[Json]:
    """Yield the objects of one folder of config, in their order."""
    for name in yaml_text.load((folder / "kustomization.yaml").read_text())["resources"]:
        for each in yaml_text.load_all((folder / name).read_text()):
            if each["kind"] not in NOT_CREATED:
                yield each


def limited(made: Json, where: Json) -> Json:
    """Return the object; if it puts policies or webhooks into force, then only in the namespaces `where`
    selects."""
    if made["kind"] == "ValidatingAdmissionPolicyBinding":
        return {**made, "spec": {**made["spec"], "matchResources": {"namespaceSelector": where}}}
    limits = deepcopy(made)
    for each in limits.get("webhooks", ()):
        shipped = each.setdefault("namespaceSelector", {}).get("matchExpressions", [])
        each["namespaceSelector"]["matchExpressions"] = [*shipped, *where.get("matchExpressions", ())]
    return limits


def create(cluster: Cluster, body: Json) -> None:
    """Create an object unless it is there."""
    try:
        cluster.api.request("POST", collection(body), body)
    except ApiError as error:
        if error.status != 409:
            raise


def collection(body: Json) -> str:
    """Return the path that objects of this kind are created at."""
    root = "/apis/" if "/" in body["apiVersion"] else "/api/"
    space = body["metadata"].get("namespace")
    inside = f"/namespaces/{space}" if space else ""
    kind = body["kind"].lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}es" if kind.endswith("s") else f"{kind}s"
    return f"{root}{body['apiVersion']}{inside}/{plural}"


def scheduler_account(cluster: Cluster, name: str, *, space: str = SYSTEM, leases: str = "") -> Path:
    """Return a kubeconfig of a ServiceAccount with the rights that ship for the gpu-scheduler. One that leads
    in another namespace `space`, or keeps the leases of devices in another, has the same rights there."""
    shipped = {(each["kind"], each["metadata"]["name"]): each for each in documents(CONFIG / "scheduler")}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": SYSTEM}}
    made = [account, _bound(shipped["ClusterRoleBinding", names.SCHEDULER], name, "")]
    for role, where in (("leader-election", space), ("device-leases", leases or space)):
        whole = f"{names.SCHEDULER}-{role}"
        made.append(_own(shipped["Role", whole], name, where))
        made.append(_bound(shipped["RoleBinding", whole], name, where))
    for each in made:
        create(cluster, each)
    await_rights(cluster, [*made, shipped["ClusterRole", names.SCHEDULER]])
    return cluster.service_account_kubeconfig(SYSTEM, name)


def await_rights(cluster: Cluster, made: list[Json]) -> None:
    """Wait until the API server obeys these roles. It learns of them a moment later, and would refuse a
    process that starts before."""
    roles = {(each["kind"], each["metadata"]["name"]): each for each in made if "rules" in each}
    for each in made:
        of = each.get("roleRef", {})
        if role := roles.get((of.get("kind"), of.get("name"))):
            user = f"{PREFIX}{each['subjects'][0]['name']}"
            asked = _attributes(role["rules"][-1], each["metadata"].get("namespace", ""))
            eventually(partial(_may, cluster, user, asked), f"{user} may {asked}")


def _attributes(rule: Json, namespace: str) -> Json:
    """Return one of the rights that a rule grants, as a question to the API server."""
    resource, _, subresource = rule["resources"][-1].partition("/")
    return {
        "verb": rule["verbs"][-1],
        "group": rule["apiGroups"][0],
        "resource": resource,
        "subresource": subresource,
        "name": rule.get("resourceNames", [""])[0],
        "namespace": namespace,
    }


def _may(cluster: Cluster, user: str, asked: Json) -> bool:
    spec = {"user": user, "resourceAttributes": asked}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(cluster.api.request("POST", path, {"spec": spec})["status"]["allowed"])


def _own(role: Json, name: str, space: str) -> Json:
    """Return a shipped Role for the scheduler of this name, in its namespace."""
    made = deepcopy(role)
    made["metadata"] = {"name": _named(role, name), "namespace": space}
    for rule in made["rules"]:
        if "resourceNames" in rule:
            rule["resourceNames"] = [f"{name}.gpu.scheduling"]
    return made


def _bound(binding: Json, name: str, space: str) -> Json:
    made: dict[str, Any] = deepcopy(binding)
    made["metadata"] = {"name": _named(binding, name)} | ({"namespace": space} if space else {})
    made["subjects"][0]["name"] = name
    if space:
        made["roleRef"]["name"] = made["metadata"]["name"]
    return made


def _named(shipped: Json, name: str) -> str:
    found: str = shipped["metadata"]["name"]
    return found.replace(names.SCHEDULER, name)


@contextmanager
def webhook(cluster: Cluster, folder: Path) -> Iterator[SelfMadeWebhook]:
    """Run the webhook under its shipped account, with certificates that it makes itself, and wait until the
    API server calls it."""
    made = SelfMadeWebhook(folder, certificateNames=["127.0.0.1"], drainSeconds=0)
    webhooks.call_process(cluster.api, names.WEBHOOK, made.port)
    with made.using(cluster.service_account_kubeconfig(SYSTEM, names.WEBHOOK)):
        eventually(lambda: is_filled_in(cluster), "claimed pods are filled in")
        yield made


@contextmanager
def webhook_in(cluster: Cluster, folder: Path, namespace: str, **settings: Any) -> Iterator[Webhook]:
    """Run the webhook under its shipped account for the pods of one namespace, where nothing is installed."""
    account = [each for each in documents(CONFIG / "webhook") if each["kind"] in ACCOUNT]
    for each in account:
        create(cluster, each)
    await_rights(cluster, account)
    made = Webhook(
        cluster.service_account_kubeconfig(SYSTEM, names.WEBHOOK), folder, drainSeconds=0, **settings
    )
    try:
        with made:
            made.install(cluster, namespace)
            eventually(lambda: is_filled_in(cluster, namespace), "claimed pods are filled in")
            yield made
    finally:
        made.uninstall(cluster)


def open_up(cluster: Cluster, namespace: str) -> None:
    """Let everything into a namespace of a cluster that is closed `ALL_BUT_OPEN`, and wait until it is so."""
    label(cluster, namespace, OPEN)
    eventually(lambda: is_let_in(cluster, namespace), f"{namespace} is open")


def is_let_in(cluster: Cluster, namespace: str) -> bool:
    """Tell whether a pod that asks for a GPU is admitted as it is."""
    made = _asking(cluster, namespace)
    return bool(made) and names.MILLIGPU not in str(made["spec"])


def is_filled_in(cluster: Cluster, namespace: str = "default") -> bool:
    """Tell whether a pod that asks for a GPU is admitted with all that it needs."""
    made = _asking(cluster, namespace)
    return bool(made) and names.MILLIGPU in str(made["spec"])


def _asking(cluster: Cluster, namespace: str) -> Json:
    """Return a pod that asks for a GPU as it would be stored; nothing if it is refused."""
    meta = {"name": "asks", "annotations": {names.GPUS: "1"}}
    body = {"metadata": meta, "spec": {"containers": [{"name": "main", "image": "train"}]}}
    try:
        return cluster.api.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", body)
    except ApiError:
        return {}


def label(cluster: Cluster, namespace: str, labels: Json) -> None:
    body = {"metadata": {"labels": labels}}
    merge = "application/merge-patch+json"
    cluster.api.request("PATCH", f"/api/v1/namespaces/{namespace}", body, content_type=merge)


def refused(cluster: Cluster) -> list[str]:
    """Return the requests of our ServiceAccounts that roles or policies refused, as the audit log shows.
    `doctor` runs as one of them and tries to read Deployments; tests try forgeries by dry run."""
    return [
        f"{each.user.removeprefix(PREFIX)}: {each.verb} {each.resource} {each.namespace}/{each.name}: "
        f"{each.why[:300]}"
        for each in cluster.audit.entries(PREFIX)
        if each.user.startswith(PREFIX) and (each.is_forbidden or "denied request" in each.why)
        if each.resource != "deployments" and not each.is_dry_run
    ]
