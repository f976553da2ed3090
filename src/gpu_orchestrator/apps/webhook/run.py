"""The webhook as a process: called by the command line."""

import structlog

from gpu_orchestrator.adapters.kube import process
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.events import Recorder
from gpu_orchestrator.adapters.kube.process import Process
from gpu_orchestrator.adapters.settings import BadSettings
from gpu_orchestrator.api import names
from gpu_orchestrator.apps.webhook.certificate import Certificate, FileCertificate
from gpu_orchestrator.apps.webhook.metrics import Metrics
from gpu_orchestrator.apps.webhook.settings import Settings
from gpu_orchestrator.apps.webhook.webhook import Webhook

log = structlog.get_logger()


async def run(settings: Settings) -> None:
    """Run until the process is asked to stop; see `process.run`."""
    certificate = _certificate(settings)
    log.info("webhook started", address=settings.bind_address)
    await process.run(
        lambda client: make(client, settings, certificate),
        kubeconfig=settings.kubeconfig,
        probe_address=settings.health_probe_bind_address,
        metrics_address=settings.metrics_bind_address,
    )


def make(client: Client, settings: Settings, certificate: Certificate) -> Process:
    metrics = Metrics()
    webhook = Webhook(client, settings, certificate, metrics)
    return Process(webhook, Recorder(client, names.WEBHOOK), metrics.registry, None)


def _certificate(settings: Settings) -> Certificate:
    if not settings.tls_cert_file or not settings.tls_key_file:
        raise BadSettings(
            "the API server calls webhooks over TLS only; give --tls-cert-file and --tls-key-file"
        )
    return FileCertificate(settings.tls_cert_file, settings.tls_key_file)
