"""What certificates need at a real API server: the shipped rights, webhook configurations that call this
machine, the Secret, and a stream of pods that must all be admitted."""

import threading
import time
from base64 import b64decode
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from controlplane.api import ApiError
from controlplane.cluster import Cluster
from gpu_orchestrator.api import names
from tests.support import scheduler_stage, yaml_text
from tests.support.operator_process import eventually
from tests.support.paths import ROOT
from tests.support.scheduler_stage import SYSTEM, pod, until
from tests.support.webhook_process import ADMISSION, NAMESPACE_NAME

Json = dict[str, Any]
SECRETS = f"/api/v1/namespaces/{SYSTEM}/secrets"
SECRET = f"{SECRETS}/{names.WEBHOOK_SECRET}"
USER = f"system:serviceaccount:{SYSTEM}:{names.WEBHOOK}"
KINDS = ("mutating", "validating")
RIGHTS = tuple(
    {"resourceAttributes": {"verb": "watch", **which}}
    for which in (
        {"resource": "nodes"},
        {"resource": "secrets", "namespace": SYSTEM, "name": names.WEBHOOK_SECRET},
        {
            "resource": "mutatingwebhookconfigurations",
            "group": "admissionregistration.k8s.io",
            "name": names.WEBHOOK,
        },
    )
)
"""One of each role."""
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
OTHERS = "entry.of.somebody.example"
"""An entry in our configurations that is not ours."""


_installed: set[str] = set()


def _install(cluster: Cluster) -> None:
    """Install our kinds and the rights of the webhook, once per cluster."""
    if cluster.url not in _installed:
        scheduler_stage.install(cluster)
        files = ("service_account", "role", "role_binding", "certificates")
        given = [f"--filename={ROOT / 'config' / 'webhook' / file}.yaml" for file in files]
        cluster.kubectl("apply", *given)
        # The API server obeys new roles a moment later; until then it would refuse what they grant.
        for right in RIGHTS:
            until(lambda right=right: _may(cluster, right), f"the webhook may {right}")  # type: ignore[misc]
        _installed.add(cluster.url)


def _may(cluster: Cluster, right: Json) -> bool:
    path, spec = "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"user": USER, **right}
    return bool(cluster.api.request("POST", path, {"spec": spec})["status"]["allowed"])


class CertificateSite:
    """Installs what ships for self-made certificates. Calls go to `port`, for pods of `namespace`."""

    def __init__(self, cluster: Cluster, namespace: str, port: int = 1) -> None:
        self.cluster, self.namespace, self.port = cluster, namespace, port

    def __enter__(self) -> Self:
        _install(self.cluster)
        self._remove()
        for kind in KINDS:
            self.request("POST", f"{ADMISSION}/{kind}webhookconfigurations", self._configuration(kind))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        for path in (*map(self.path, KINDS), SECRET):
            with suppress(ApiError):
                self.request("DELETE", path)

    def _configuration(self, kind: str) -> Json:
        """Return what ships, but for this namespace and this machine, and failing where it would be ignored.
        An entry of somebody else is added, which no request matches: a selector of namespaces does not keep
        objects without a namespace away, so it has no rules for these."""
        made: Json = yaml_text.load((ROOT / "config" / "webhook" / f"{kind}.yaml").read_text())
        here = {"key": NAMESPACE_NAME, "operator": "In", "values": [self.namespace]}
        for each in made["webhooks"]:
            path = each["clientConfig"].pop("service")["path"]
            each["clientConfig"]["url"] = f"https://127.0.0.1:{self.port}{path}"
            each["failurePolicy"], each["timeoutSeconds"] = "Fail", 30
            each.setdefault("namespaceSelector", {}).setdefault("matchExpressions", []).append(here)
        never = {"matchLabels": {"no": "such"}}
        first = made["webhooks"][0]
        rules = [each for each in first["rules"] if each.get("scope") != "Cluster"]
        made["webhooks"].append({**first, "name": OTHERS, "namespaceSelector": never, "rules": rules})
        return made

    def request(self, method: str, path: str, body: Json | None = None, **more: Any) -> Json:
        return self.cluster.api.request(method, path, body, **more)

    def account(self) -> Path:
        """Return a kubeconfig of the webhook's ServiceAccount."""
        return self.cluster.service_account_kubeconfig(SYSTEM, names.WEBHOOK)

    def path(self, kind: str) -> str:
        return f"{ADMISSION}/{kind}webhookconfigurations/{names.WEBHOOK}"

    def bundles(self, name: str = "") -> set[str]:
        """Return the different bundles of our entries or, with `name`, of that entry."""
        found = [each for kind in KINDS for each in self.request("GET", self.path(kind))["webhooks"]]
        wanted = [each for each in found if (each["name"] == name if name else each["name"] != OTHERS)]
        return {b64decode(each["clientConfig"].get("caBundle", "")).decode() for each in wanted}

    def empty_bundles(self) -> None:
        for kind in KINDS:
            entries = self.request("GET", self.path(kind))["webhooks"]
            emptied = [{"name": each["name"], "clientConfig": {"caBundle": None}} for each in entries]
            self.request("PATCH", self.path(kind), {"webhooks": emptied}, content_type=STRATEGIC)

    def secret(self) -> dict[str, str]:
        """Return the texts of the Secret; empty if there is none."""
        try:
            found = self.request("GET", SECRET).get("data", {})
        except ApiError:
            return {}
        return {name: b64decode(value).decode() for name, value in found.items()}

    def patch_secret(self, **texts: Json) -> None:
        self.request("PATCH", SECRET, texts, content_type=MERGE)

    def trusts_what_is_served(self) -> bool:
        """Tell whether the configurations show the bundle of the Secret."""
        bundle = self.secret().get("ca.crt", "")
        return bool(bundle) and self.bundles() == {bundle}

    def until_served_is_not(self, served: str) -> str:
        """Wait until the Secret holds another serving certificate than this one; return it."""

        def another() -> str:
            found = self.secret().get("tls.crt", served)
            return "" if found == served else found

        return eventually(another, "another certificate is served")


class Stream:
    """Creates claimed pods, as a dry run, until the block ends. `failed` has those that were not admitted."""

    def __init__(self, site: CertificateSite, *, pause_s: float = 0.02) -> None:
        self._site, self._pause_s = site, pause_s
        self.admitted, self.failed = 0, list[str]()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._create, daemon=True) for _ in range(2)]

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for each in self._threads:
            each.join(60)

    def _create(self) -> None:
        while not self._stop.wait(self._pause_s):
            try:
                self.admit()
                self.admitted += 1
            except (ApiError, OSError, AssertionError) as error:
                self.failed.append(f"{time.strftime('%H:%M:%S')} {error}")

    def admit(self) -> None:
        """Create one pod; raise unless the webhook has filled it in."""
        path = f"/api/v1/namespaces/{self._site.namespace}/pods?dryRun=All"
        made = self._site.request("POST", path, pod("train", gpus=1))
        assert made["spec"]["schedulerName"] == names.SCHEDULER, "the pod was not filled in"
