"""The Helm chart renders what kustomize makes of config, and answers bad values once.

test_releases.py installs it.
"""

import base64
import re
from copy import deepcopy
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

import gpu_orchestrator
from controlplane.toolbox import Toolbox
from tests.support.helm import CHART, NEWEST, SYSTEM, WITH_CERT_MANAGER, WITH_MONITORING, Helm, HelmFailed
from tests.support.kustomize import build

Json = dict[str, Any]
Objects = dict[tuple[str, str], Json]
TAG = {"image": {"tag": "latest"}}
DEFAULT = ("default",)
PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
ONLY_HELM = ("checksum/settings", "helm.sh/resource-policy")
"""Annotations with which Helm restarts pods whose settings changed, and keeps custom resources."""
OF_THE_CLUSTER = (
    "FlowSchema",
    "PriorityLevelConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)
"""Kinds that kustomize gives the namespace of its overlay, which the API server then ignores."""


@pytest.fixture
def helm(toolbox: Toolbox, tmp_path: Path) -> Helm:
    return Helm(toolbox, tmp_path)


def by_name(documents: list[Json]) -> Objects:
    """Return the objects by kind and name, without what says nothing about what they do."""
    made: Objects = {}
    for each in documents:
        key = each["kind"], each["metadata"]["name"]
        assert key not in made, f"{key} is there twice"
        made[key] = _substance(each)
    return made


def _substance(document: Json) -> Json:
    made = deepcopy(document)
    for meta in (made["metadata"], made.get("spec", {}).get("template", {}).get("metadata", {})):
        notes = {key: value for key, value in meta.pop("annotations", {}).items() if key not in ONLY_HELM}
        if notes:
            meta["annotations"] = notes
    if made["kind"] == "ConfigMap":
        made["data"] = {name: yaml.safe_load(text) for name, text in made["data"].items()}
    if made["kind"] in OF_THE_CLUSTER:
        made["metadata"].pop("namespace", None)
    pod = made.get("spec", {}).get("template", {}).get("spec", {})
    for each in (pod, *pod.get("containers", ())):
        for name in each.keys() & {"volumes", "volumeMounts"}:
            each[name].sort(key=itemgetter("name"))
    return made


def all_on() -> Json:
    """Everything that can be on at once."""
    return {
        **TAG,
        "clusterManager": {"enabled": True},
        "agent": {"mps": {"enabled": True}},
        "scheduler": {"podGroups": True},
        "mutatingPolicy": {"enabled": True},
        "webhook": {"autoscaling": {"enabled": True}, "certificates": "cert-manager"},
        "monitoring": {
            each: {"enabled": True} for each in ("serviceMonitor", "prometheusRule", "dashboards")
        },
    }


ON = (*NEWEST, *WITH_MONITORING, *WITH_CERT_MANAGER)
EVERYTHING = (
    "default",
    "cluster-manager",
    "-agent",
    "agent-mps",
    "scheduler-podgroups",
    "-webhook",
    "webhook-cert-manager",
    "webhook-autoscaling",
    "mutating-policy",
    "monitoring",
)
OPERATOR_ALONE: Json = {
    **TAG,
    **{name: {"enabled": False} for name in ("scheduler", "webhook", "agent", "policies")},
    "networkPolicies": {"enabled": False},
    "monitoring": {},
}


def as_the_guides_say(objects: Objects) -> Objects:
    """Return what kustomize made, with what docs/agent.md and docs/webhook.md say to do by hand: the settings
    of webhook and agent follow their overlays."""
    objects["ConfigMap", "gpu-scheduler-webhook"]["data"]["settings.yaml"] |= {
        "mps": True,
        "certificates": "files",
    }
    objects["ConfigMap", "gpu-scheduler-agent"]["data"]["settings.yaml"] |= {"mps": True}
    deployment = objects["Deployment", "gpu-scheduler-webhook"]["spec"]
    del deployment["replicas"]  # an autoscaler's
    return objects


def test_defaults_render_what_kustomize_makes_of_the_default(helm: Helm) -> None:
    assert by_name(helm.template(TAG)) == by_name(build(helm.toolbox, *DEFAULT))


def test_everything_renders_what_kustomize_makes_of_all_overlays(helm: Helm) -> None:
    wanted = as_the_guides_say(by_name(build(helm.toolbox, *EVERYTHING)))
    assert by_name(helm.template(all_on(), *ON)) == wanted


def test_operator_alone_renders_its_folders(helm: Helm) -> None:
    wanted = build(helm.toolbox, "crd", "priority", "users", "manager", "rbac")
    assert by_name(helm.template(OPERATOR_ALONE)) == by_name(wanted)


def test_another_namespace_is_written_wherever_the_first_was(helm: Helm) -> None:
    """In ServiceAccounts that policies and flow schemas name, too."""
    there = by_name(helm.template(TAG, namespace="gpus"))
    text = yaml.safe_dump_all(there.values())
    assert SYSTEM not in text
    here = yaml.safe_dump_all(by_name(helm.template(TAG)).values(), width=10_000)
    assert yaml.safe_dump_all(there.values(), width=10_000) == here.replace(SYSTEM, "gpus")


def test_every_object_is_in_the_namespace_of_the_release(helm: Helm) -> None:
    """`kubectl apply -n other` of what `helm template` prints would otherwise put some elsewhere."""
    for each in helm.template(all_on(), *ON, namespace="gpus"):
        assert each["metadata"].get("namespace", "gpus") == "gpus"


def test_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == gpu_orchestrator.__version__


def test_lint_finds_nothing_but_the_missing_icon(helm: Helm) -> None:
    printed = helm.run("lint", "--strict", "--namespace", SYSTEM, str(CHART))
    assert "1 chart(s) linted, 0 chart(s) failed" in printed
    assert re.findall(r"\[(?:INFO|WARNING|ERROR)\] (.*)", printed) == ["Chart.yaml: icon is recommended"]


def test_package_has_all_that_templates_need(helm: Helm, tmp_path: Path) -> None:
    helm.run("package", str(CHART), "--destination", str(tmp_path))
    (archive,) = tmp_path.glob("*.tgz")
    assert archive.name == f"gpu-scheduler-{gpu_orchestrator.__version__}.tgz"
    packed = Helm(helm.toolbox, tmp_path, chart=archive)
    assert by_name(packed.template(all_on(), *ON)) == by_name(helm.template(all_on(), *ON))


def test_definitions_can_be_applied_without_helm(helm: Helm) -> None:
    """As the seed's quick start does: kubectl apply -f charts/gpu-scheduler/templates/crds.yaml."""
    plain = yaml.safe_load_all((CHART / "templates" / "crds.yaml").read_text())
    rendered = [each for each in helm.template(TAG) if each["kind"] == "CustomResourceDefinition"]
    assert [each for each in plain if each] == rendered
    none = helm.template({"crds": {"install": False}})
    assert not [each for each in none if each["kind"] == "CustomResourceDefinition"]


def find(documents: list[Json], kind: str, name: str) -> Json:
    return next(each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name))


def test_image_is_by_digest_if_one_is_given(helm: Helm) -> None:
    digest = "sha256:" + "0" * 64
    image = {
        "repository": "registry.example.com:5000/gpu",
        "tag": "2",
        "digest": digest,
        "pullPolicy": "Always",
    }
    for each in helm.template({"image": image, "imagePullSecrets": [{"name": "mine"}]}):
        if each["kind"] in ("Deployment", "DaemonSet"):
            pod = each["spec"]["template"]["spec"]
            assert pod["imagePullSecrets"] == [{"name": "mine"}]
            assert [(one["image"], one["imagePullPolicy"]) for one in pod["containers"]] == [
                (f"registry.example.com:5000/gpu@{digest}", "Always")
            ]


@pytest.mark.parametrize("given", [PEM, base64.b64encode(PEM.encode()).decode()], ids=["pem", "base64"])
def test_own_certificates_are_mounted_and_trusted(helm: Helm, given: str) -> None:
    webhook = {"certificates": "secret", "certificateSecret": "mine", "caBundle": given}
    made = helm.template({"webhook": webhook})
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for each in find(made, kind, "gpu-scheduler-webhook")["webhooks"]:
            assert base64.b64decode(each["clientConfig"]["caBundle"]).decode() == PEM
    pod = find(made, "Deployment", "gpu-scheduler-webhook")["spec"]["template"]["spec"]
    assert {"secretName": "mine", "defaultMode": 0o440} in [each.get("secret") for each in pod["volumes"]]
    assert not [each for each in made if each["metadata"]["name"] == "gpu-scheduler-webhook-certificates"]


def test_excluded_namespaces_are_left_alone_besides_those_of_kubernetes(helm: Helm) -> None:
    made = helm.template(
        {"webhook": {"excludeNamespaces": ["legacy"]}, "mutatingPolicy": {"enabled": True}}, *NEWEST
    )
    left_out = {"values": ["kube-system", "kube-public", "kube-node-lease", "legacy"]}
    for each in find(made, "MutatingWebhookConfiguration", "gpu-scheduler-webhook")["webhooks"]:
        assert left_out.items() <= each["namespaceSelector"]["matchExpressions"][0].items()
    checks = find(made, "ValidatingWebhookConfiguration", "gpu-scheduler-webhook")["webhooks"]
    assert [each["namespaceSelector"]["matchExpressions"][0]["values"] for each in checks] == [["legacy"]]
    for each in made:
        if each["kind"] == "MutatingAdmissionPolicy":
            assert "legacy" in str(each["spec"]["matchConstraints"]["namespaceSelector"])


def settings(documents: list[Json], name: str) -> Json:
    found: Json = yaml.safe_load(find(documents, "ConfigMap", name)["data"]["settings.yaml"])
    return found


def test_settings_follow_what_is_installed_unless_they_are_given(helm: Helm) -> None:
    alone = {"webhook": {"enabled": False}, "policies": {"enabled": False}}
    follow = settings(helm.template(alone), "gpu-scheduler")
    assert {
        "guardedAnnotations": False,
        "requireDeviceEnv": "Warn",
        "requireCapacity": "Ignore",
    }.items() <= follow.items()
    given = {
        "guardedAnnotations": False,
        "requireCapacity": "Warn",
        "leaderElect": False,
        "releaseSeconds": 0,
    }
    said = settings(helm.template({"scheduler": {"settings": given}}), "gpu-scheduler")
    assert said.items() >= given.items()


def test_checksum_restarts_pods_whose_settings_changed(helm: Helm) -> None:
    before = checksums(helm.template())
    after = checksums(helm.template({"agent": {"settings": {"scanSeconds": 1}}}))
    assert before.keys() == {"gpu-scheduler", "gpu-scheduler-webhook", "gpu-scheduler-agent"}
    assert {name for name in before if before[name] != after[name]} == {"gpu-scheduler-agent"}


def checksums(documents: list[Json]) -> dict[str, str]:
    found = {}
    for each in documents:
        notes = each.get("spec", {}).get("template", {}).get("metadata", {}).get("annotations", {})
        if "checksum/settings" in notes:
            found[each["metadata"]["name"]] = notes["checksum/settings"]
    return found


def test_renamed_scheduler_has_its_rights_under_its_account(helm: Helm) -> None:
    made = helm.template({"serviceAccountName": "team-gpu-scheduler"})
    assert find(made, "ServiceAccount", "team-gpu-scheduler")
    for each in made:
        for subject in each.get("subjects", ()):
            assert subject["name"] != "gpu-scheduler"
    flows = [each for each in made if each["kind"] == "FlowSchema"]
    assert "team-gpu-scheduler" in str(flows)
    pod = find(made, "Deployment", "gpu-scheduler")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "team-gpu-scheduler"


def test_cluster_manager_uses_one_store_for_all_its_pods(helm: Helm) -> None:
    given = {"enabled": True, "replicas": 2, "store": {"urlSecret": "store"}, "env": {"MAX_WORKERS": 9}}
    spec = find(helm.template({"clusterManager": given}), "StatefulSet", "gpu-orchestrator-cluster-manager")[
        "spec"
    ]
    assert (spec["replicas"], "volumeClaimTemplates" in spec) == (2, False)
    pod = spec["template"]["spec"]
    env = {each["name"]: each["value"] for each in pod["containers"][0]["env"]}
    assert env["REDIS_URL_FILE"] == "/run/secrets/store/url"
    assert env["MAX_WORKERS"] == "9"
    mounted = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert mounted.keys() == volumes.keys()
    assert (mounted["store"], volumes["store"]["secret"]["secretName"]) == ("/run/secrets/store", "store")
    assert volumes["data"] == {"name": "data", "emptyDir": {}}
    forgetful = helm.template({"clusterManager": {"enabled": True, "persistence": {"enabled": False}}})
    assert (
        "volumeClaimTemplates"
        not in find(forgetful, "StatefulSet", "gpu-orchestrator-cluster-manager")["spec"]
    )


REFUSED = [
    pytest.param(
        {"clusterManager": {"enabled": True, "replicas": 2}}, "each would have its own", id="2 stores"
    ),
    pytest.param({"clusterManager": {"env": {"log-level": "x"}}}, "log-level", id="no variable"),
    pytest.param({"agnet": {"enabled": False}}, "additional properties 'agnet' not allowed", id="misspelt"),
    pytest.param({"webhook": {"replica": 3}}, "'replica' not allowed", id="misspelt below"),
    pytest.param({"scheduler": {"settings": {"lokc": "lease"}}}, "'lokc' not allowed", id="misspelt setting"),
    pytest.param(
        {"scheduler": {"settings": {"lock": "none"}}}, "one of 'binding', 'lease'", id="unknown choice"
    ),
    pytest.param(
        {"scheduler": {"settings": {"leaseSeconds": "15s"}}}, "got string, want number", id="not a number"
    ),
    pytest.param(
        {"scheduler": {"settings": {"namespace": "x"}}}, "'namespace' not allowed", id="given by the chart"
    ),
    pytest.param({"agent": False}, "at '/agent': got boolean, want object", id="a component as a switch"),
    pytest.param({"agent": {"enabled": "false"}}, "at '/agent/enabled': got string, want boolean", id="text"),
    pytest.param({"webhook": {"replicas": 0}}, "minimum: got 0, want 1", id="no replica"),
    pytest.param(
        {"serviceAccountName": "default"}, "at '/serviceAccountName'", id="account that policies do not know"
    ),
    pytest.param(
        {"image": "gpu-orchestrator:1"}, "at '/image': got string, want object", id="image as a text"
    ),
    pytest.param({"image": {"tag": 1.10}}, "at '/image/tag': got number, want string", id="tag as a number"),
    pytest.param(
        {"webhook": {"caBundle": PEM}}, "set webhook.certificates=secret, or leave caBundle out", id="bundle"
    ),
    pytest.param(
        {"webhook": {"certificates": "secret"}}, "--set-file webhook.caBundle=ca.crt", id="no bundle"
    ),
    pytest.param(
        {"webhook": {"certificates": "secret", "caBundle": "/etc/ca.crt"}},
        "neither PEM",
        id="a path as a bundle",
    ),
    pytest.param(
        {"webhook": {"certificates": "cert-manager"}}, "install cert-manager first", id="no cert-manager"
    ),
    pytest.param(
        {"webhook": {"autoscaling": {"enabled": True, "minReplicas": 9}}},
        "9 is more than maxReplicas 6",
        id="9 to 6",
    ),
    pytest.param({"webhook": {"enabled": False}}, "nothing fills in the pods", id="policies alone"),
    pytest.param(
        {"monitoring": {"serviceMonitor": {"enabled": True}}}, "prometheus.io/scrape", id="no operator"
    ),
]


@pytest.mark.parametrize(("values", "why"), REFUSED)
def test_bad_values_have_one_answer(helm: Helm, values: Json, why: str) -> None:
    with pytest.raises(HelmFailed) as refused:
        helm.template(values)
    answer = str(refused.value)
    assert why in answer
    assert len(answer.replace("Use --debug flag to render out invalid YAML", "").split("\n  - ")) <= 2


def test_mutating_policies_need_a_kubernetes_that_has_them(helm: Helm) -> None:
    with pytest.raises(HelmFailed, match=re.escape("needs Kubernetes 1.36, and this is v1.35.0")):
        helm.template({"mutatingPolicy": {"enabled": True}}, "--kube-version", "1.35.0")


def test_kubernetes_without_policies_is_refused(helm: Helm) -> None:
    with pytest.raises(HelmFailed, match=r">=1\.30\.0-0 which is incompatible"):
        helm.template({}, "--kube-version", "1.29.3")


@pytest.mark.parametrize("namespace", ["default", "kube-system"])
def test_shared_namespace_is_refused(helm: Helm, namespace: str) -> None:
    with pytest.raises(HelmFailed, match="install into one of our own"):
        helm.template({}, namespace=namespace)


def test_everything_wrong_is_said_at_once(helm: Helm) -> None:
    values = {"webhook": {"certificates": "secret"}, "monitoring": {"prometheusRule": {"enabled": True}}}
    with pytest.raises(HelmFailed) as refused:
        helm.template(values, namespace="default")
    assert str(refused.value).count("\n  - ") == 3
