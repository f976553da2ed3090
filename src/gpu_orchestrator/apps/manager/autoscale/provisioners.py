"""Makes the provisioner that the settings name. Kubernetes is imported only if it is used."""

import asyncio
import os
import shlex
from pathlib import Path

from gpu_orchestrator.adapters import settings as all_settings
from gpu_orchestrator.adapters.gpus import find
from gpu_orchestrator.adapters.provisioners.command import Command
from gpu_orchestrator.adapters.provisioners.local import Local, LocalWorkers, places_of
from gpu_orchestrator.adapters.provisioners.provisioner import CannotScale, Provisioner, without
from gpu_orchestrator.adapters.settings import Settings

SECRETS = (
    "REDIS_",
    "RESULTS_S3_",
    "SECRETS_KEY",
    "SSL_KEY",
    *(each.upper() for each in all_settings.SECRETS),
)
"""How the names of variables begin that no program of the operator needs."""
DESCRIBED = ("--simulate", "--devices-file", "--gpus")
"""Options that say which devices a worker has."""


async def provisioner_of(settings: Settings) -> Provisioner:
    """Return what starts and ends workers; raise `CannotScale` if it cannot be used now."""
    match settings.auto_scale_provisioner:
        case "local":
            return Local(await asyncio.to_thread(_local, settings))
        case "command":
            return Command(settings.auto_scale_command, SECRETS)
    return _deployment(settings)


def _local(settings: Settings) -> LocalWorkers:
    options, places = shlex.split(settings.auto_scale_worker_options), list[tuple[str, ...]]()
    if settings.auto_scale_pool:
        options = ["--pool", settings.auto_scale_pool, *options]
    if not any(each.split("=")[0] in DESCRIBED for each in options):
        gpus = find.find()
        try:
            places = places_of([each.uuid for each in gpus.devices()], settings.auto_scale_worker_gpus)
        finally:
            gpus.close()
    token = {"GPU_ORCHESTRATOR_TOKEN": settings.worker_token} if settings.worker_token else {}
    environment = {**without(dict(os.environ), SECRETS), "DATA_DIR": settings.data_dir, **token}
    return LocalWorkers(options, environment, settings.auto_scale_label, Path(settings.data_dir), places)


def _deployment(settings: Settings) -> Provisioner:
    from gpu_orchestrator.adapters.kube.auth import config
    from gpu_orchestrator.adapters.kube.client import Client
    from gpu_orchestrator.adapters.kube.errors import KubeError
    from gpu_orchestrator.adapters.kube.transport.pooled import PooledTransport
    from gpu_orchestrator.adapters.provisioners.deployment import Deployment

    namespace, _, name = settings.auto_scale_deployment.partition("/")
    try:
        return Deployment(Client(PooledTransport(config.load())), namespace, name)
    except KubeError as error:
        raise CannotScale(str(error)) from error
