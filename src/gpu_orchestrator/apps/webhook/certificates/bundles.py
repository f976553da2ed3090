"""Keep the `caBundle` of our webhook configurations right.

A replica whose watch lags must not put an old bundle over a newer one. So it notes the version of the
configuration first, reads the Secret afterwards, and writes only if the configuration still has that version:
a bundle in the configuration is older than that read, and so is the Secret that it was taken from.
"""

from base64 import b64encode
from collections.abc import Sequence

import structlog

from gpu_orchestrator.adapters.kube.client import Client, Patch
from gpu_orchestrator.adapters.kube.informer.watch import Watch
from gpu_orchestrator.api import names
from gpu_orchestrator.api.webhook_objects import (
    MUTATING_WEBHOOKS,
    SECRETS,
    VALIDATING_WEBHOOKS,
    Secret,
    WebhookConfiguration,
    WebhookEntry,
)
from gpu_orchestrator.api.wire import Json, Resource

# Entries that an administrator may have added to our configurations have names of other domains.
OUR_ENTRIES = f".{names.SCHEDULING_GROUP}"

log = structlog.get_logger()


class Bundles:
    """The two webhook configurations, by watch. One that is not installed needs nothing."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._watched = [(kind, _watch(client, kind)) for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)]

    @property
    def watches(self) -> Sequence[Watch[WebhookConfiguration]]:
        return [watch for _, watch in self._watched]

    def show(self, bundle: str) -> bool:
        """Tell whether every entry of ours has this bundle."""
        return not any(_wrong(found, bundle) for _, found in self._found())

    def show_any(self) -> bool:
        """Tell whether some entry of ours has a bundle, right or not."""
        return any(each.client_config.ca_bundle for _, found in self._found() for each in _ours(found))

    async def repair(self, secret: Secret, bundle: str) -> None:
        """Write the bundle of this Secret into each entry that has another one. Raise `Outdated` or
        `Conflict` if the Secret or a configuration has changed meanwhile: the watches will show it."""
        for kind, found in self._found():
            if wrong := _wrong(found, bundle):
                await self._check_current(secret)
                await self._client.patch(
                    kind, found.metadata.name, _patch(found, wrong, bundle), kind=Patch.STRATEGIC
                )
                log.info("caBundle written", configuration=kind.kind, entries=[each.name for each in wrong])

    async def _check_current(self, secret: Secret) -> None:
        current = await self._client.get(SECRETS, secret.metadata.name, self._namespace)
        if current.metadata.resource_version != secret.metadata.resource_version:
            raise Outdated

    def _found(self) -> list[tuple[Resource[WebhookConfiguration], WebhookConfiguration]]:
        return [(kind, found) for kind, watch in self._watched if (found := watch.store.get(names.WEBHOOK))]


class Outdated(Exception):
    """The Secret has changed, and the watch has not shown it yet."""


def _watch(client: Client, kind: Resource[WebhookConfiguration]) -> Watch[WebhookConfiguration]:
    return Watch(client, kind, fields=f"metadata.name={names.WEBHOOK}")


def _wrong(found: WebhookConfiguration, bundle: str) -> list[WebhookEntry]:
    wanted = _encoded(bundle)
    return [each for each in _ours(found) if each.client_config.ca_bundle != wanted]


def _ours(found: WebhookConfiguration) -> list[WebhookEntry]:
    return [each for each in found.webhooks if each.name.endswith(OUR_ENTRIES)]


def _patch(found: WebhookConfiguration, wrong: Sequence[WebhookEntry], bundle: str) -> Json:
    """Return a strategic merge patch: entries are matched by name, and all else of them stays as it is."""
    config = {"clientConfig": {"caBundle": _encoded(bundle)}}
    guard = {"resourceVersion": found.metadata.resource_version, "uid": found.metadata.uid}
    return {"metadata": guard, "webhooks": [{"name": each.name, **config} for each in wrong]}


def _encoded(bundle: str) -> str:
    return b64encode(bundle.encode()).decode()
