"""The webhook as a process: called by the command line."""

import structlog

from gpu_orchestrator.adapters.kube import process
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.kube.process import Process
from gpu_orchestrator.api import names
from gpu_orchestrator.apps.webhook.certificate import Certificate, FileCertificate
from gpu_orchestrator.apps.webhook.certificates.keeper import Keeper
from gpu_orchestrator.apps.webhook.certificates.rotation import Rules
from gpu_orchestrator.apps.webhook.metrics import Metrics
from gpu_orchestrator.apps.webhook.settings import Settings
from gpu_orchestrator.apps.webhook.webhook import Webhook

log = structlog.get_logger()


async def run(settings: Settings) -> None:
    """Run until the process is asked to stop; see `process.run`."""
    kind = "files" if settings.serves_files else "self-made"
    log.info("webhook started", address=settings.bind_address, certificates=kind)
    await process.run(
        lambda client: make(client, settings),
        kubeconfig=settings.kubeconfig,
        probe_address=settings.health_probe_bind_address,
        metrics_address=settings.metrics_bind_address,
    )


def make(client: Client, settings: Settings) -> Process:
    metrics = Metrics()
    certificate = _certificate(client, settings, metrics)
    webhook = Webhook(client, settings, certificate, metrics)
    recorder = Recorder(client, names.WEBHOOK)
    return Process(webhook, recorder, metrics.registry, None, unready=lambda: certificate.unready)


def _certificate(client: Client, settings: Settings, metrics: Metrics) -> Certificate:
    if settings.serves_files:
        return FileCertificate(settings.tls_cert_file, settings.tls_key_file)
    return Keeper(client, settings.namespace, _rules(settings), metrics)


def _rules(settings: Settings) -> Rules:
    life_s = settings.certificate_life_seconds
    return Rules(
        names=frozenset({f"{names.WEBHOOK}.{settings.namespace}.svc", *settings.certificate_names}),
        life_s=life_s,
        rotate_after_s=settings.certificate_rotate_seconds or life_s * 2 / 3,
        propagation_s=settings.certificate_propagation_seconds,
    )
