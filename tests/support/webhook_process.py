"""The webhook as a real process over TLS, and its configuration at a real API server."""

import base64
import http.client
import json
import re
import signal
import socket
import ssl
import subprocess
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from controlplane.api import ApiError
from controlplane.cluster import Cluster, free_port
from tests.support import scrapes, warm, yaml_text
from tests.support.kube_certificates import Authority
from tests.support.operator_process import eventually
from tests.support.paths import ROOT
from tests.support.tracebacks import tracebacks
from tests.support.workers import compiled

Json = dict[str, Any]
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
NAMESPACE_NAME = "kubernetes.io/metadata.name"


class Webhook:
    """`gpu-orchestrator webhook` as a subprocess, with a certificate of its own. When the block ends it must
    stop cleanly, and its log must contain no traceback."""

    def __init__(self, kubeconfig: Path, folder: Path, **settings: Any) -> None:
        self.port, self.metrics_port = free_port(), free_port()
        self.log, self.authority, self.folder = folder / "webhook.log", Authority(), folder
        self.certify()
        (folder / "ca.crt").write_bytes(self.authority.pem)
        (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
        self._command = [
            warm.PROGRAM,
            "webhook",
            f"--config={folder / 'settings.yaml'}",
            f"--kubeconfig={kubeconfig}",
            f"--bind-address=127.0.0.1:{self.port}",
            f"--tls-cert-file={folder / 'tls.crt'}",
            f"--tls-key-file={folder / 'tls.key'}",
            f"--metrics-bind-address=127.0.0.1:{self.metrics_port}",
            "--health-probe-bind-address=0",
            "--v=1",
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def certify(self) -> None:
        """Write a new certificate of the same authority."""
        pair = self.authority.pair("webhook")
        (self.folder / "tls.key").write_bytes(pair.key_pem)
        (self.folder / "tls.crt").write_bytes(pair.certificate_pem)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> Self:
        with self.log.open("ab") as log:
            self.process = warm.Popen(self._command, stderr=log, stdout=log, env=compiled())
        eventually(self.is_ready, f"ready; log: {self.log}")
        return self

    def is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        with suppress(OSError):
            return self.exchange("GET", "/readyz")[0] == 200
        return False

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def connect(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=30)

    def exchange(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = self.connect()
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def requests(self) -> dict[tuple[str, str], int]:
        """Return how many requests were counted, by path and result."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        scrapes.check("webhook", text)
        found = re.findall(r'gpu_webhook_requests_total{path="(.*?)",result="(.*?)"} (\S+)', text)
        return {(path, result): int(float(count)) for path, result, count in found}

    def lines(self) -> list[Json]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait(10)

    def terminate(self) -> None:
        if self.process:
            self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Wait until it ends, and return its exit code."""
        assert self.process is not None
        try:
            return self.process.wait(20)
        finally:
            self.process.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        was_killed = self.process is None or self.process.poll() is not None
        self.terminate()
        code = 0 if was_killed else self.wait()
        text = self.log.read_text()
        if kind is None:
            assert code == 0, f"the webhook ended with {code}: {text[-2000:]}"
            assert tracebacks(text) == []

    # --- at the API server -------------------------------------------------------------------------------

    def install(self, cluster: Cluster, *namespaces: str) -> None:
        """Create the shipped configurations for these namespaces, calling this process."""
        for kind, file in (("mutating", "mutating.yaml"), ("validating", "validating.yaml")):
            made = yaml_text.load((ROOT / "config" / "webhook" / file).read_text())
            for each in made["webhooks"]:
                path = each["clientConfig"].pop("service")["path"]
                bundle = base64.b64encode(self.authority.pem).decode()
                each["clientConfig"] = {"url": self.url + path, "caBundle": bundle}
                each["timeoutSeconds"] = 30  # a busy machine must not make the API server ignore us
                selector = each.setdefault("namespaceSelector", {}).setdefault("matchExpressions", [])
                selector.append({"key": NAMESPACE_NAME, "operator": "In", "values": list(namespaces)})
            cluster.api.request("POST", f"{ADMISSION}/{kind}webhookconfigurations", made)

    def uninstall(self, cluster: Cluster) -> None:
        for kind in ("mutating", "validating"):
            with suppress(ApiError):
                name = "gpu-scheduler-webhook"
                cluster.api.request("DELETE", f"{ADMISSION}/{kind}webhookconfigurations/{name}")


class SelfMadeWebhook(Webhook):
    """A webhook that makes its own certificates; `with webhook.using(kubeconfig):` runs it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(Path(), folder, **settings)
        self.probe_port = free_port()

    def using(self, kubeconfig: Path) -> Self:
        given = [
            each for each in self._command if not each.startswith(("--tls-", "--kubeconfig", "--health-"))
        ]
        self._command = [
            *given,
            f"--kubeconfig={kubeconfig}",
            f"--health-probe-bind-address=127.0.0.1:{self.probe_port}",
        ]
        return self

    def is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5):
            address = f"http://127.0.0.1:{self.probe_port}/readyz"
            with urllib.request.urlopen(address, timeout=10) as answer:
                return bool(answer.status == 200)
        return False
