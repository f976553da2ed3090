"""`config/webhook-cert-manager` as kubectl renders it. cert-manager itself is not part of the tests."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.cluster import Cluster
from gpu_orchestrator.adapters import setting_file
from gpu_orchestrator.apps.webhook.settings import Settings
from tests.support.paths import ROOT

Json = dict[str, Any]
KINDS_OF_CERT_MANAGER = {"Issuer", "Certificate"}


@pytest.fixture(scope="module")
def rendered(cluster: Cluster) -> list[Json]:
    text = cluster.kubectl("kustomize", str(ROOT / "config" / "webhook-cert-manager"))
    return list(yaml.safe_load_all(text))


def of_kind(rendered: list[Json], kind: str) -> list[Json]:
    return [each for each in rendered if each["kind"] == kind]


def test_no_right_to_secrets_or_configurations_is_left(rendered: list[Json]) -> None:
    assert of_kind(rendered, "Role") == of_kind(rendered, "ValidatingAdmissionPolicy") == []
    (role,) = of_kind(rendered, "ClusterRole")
    resources = {name for rule in role["rules"] for name in rule["resources"]}
    assert resources.isdisjoint(
        {"secrets", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"}
    )


def test_webhook_serves_the_certificate_that_is_injected(rendered: list[Json], tmp_path: Path) -> None:
    (deployment,) = of_kind(rendered, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    flags = dict(each.removeprefix("--").split("=", 1) for each in container["args"][1:])
    (file,) = of_kind(rendered, "ConfigMap")
    (tmp_path / "settings.yaml").write_text(file["data"]["settings.yaml"])
    given = {name.replace("-", "_"): value for name, value in flags.items() if name != "config"}
    settings = setting_file.load(Settings, str(tmp_path / "settings.yaml"), given)
    assert settings.serves_files
    certificate = next(each for each in of_kind(rendered, "Certificate") if "dnsNames" in each["spec"])
    mounted = {each["name"]: each for each in pod["volumes"]}["cert"]["secret"]["secretName"]
    assert certificate["spec"]["secretName"] == mounted
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "cert")
    assert settings.tls_cert_file == f"{mount['mountPath']}/tls.crt"
    namespace, name = certificate["metadata"]["namespace"], certificate["metadata"]["name"]
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        (configuration,) = of_kind(rendered, kind)
        injected = configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
        assert injected == f"{namespace}/{name}"
        for each in configuration["webhooks"]:
            service = each["clientConfig"]["service"]
            assert certificate["spec"]["dnsNames"] == [f"{service['name']}.{service['namespace']}.svc"]


def test_all_else_is_accepted_by_the_api_server(cluster: Cluster, rendered: list[Json]) -> None:
    cluster.kubectl("apply", "-k", str(ROOT / "config" / "namespace"))
    known = [each for each in rendered if each["kind"] not in KINDS_OF_CERT_MANAGER]
    cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(known))


def test_guide_lists_the_folders_of_the_default() -> None:
    text = (ROOT / "docs" / "webhook.md").read_text()
    listed = re.findall(r"^- \.\./gpu-orchestrator/config/(\S+)$", text, re.MULTILINE)
    default = yaml.safe_load((ROOT / "config" / "default" / "kustomization.yaml").read_text())["resources"]
    assert listed == [each[3:].replace("webhook", "webhook-cert-manager") for each in default]
