"""Keep self-made certificates in the Secret, in the webhook configurations and in the server of this replica.

Every replica runs one. They agree through the Secret alone: each reads it by watch, decides by `rotation.py`,
and writes one step, guarded by the version that it read. A conflict means that another replica was faster.
"""

import asyncio
import ssl
import time
from collections.abc import Sequence
from typing import Any

import structlog

from gpu_orchestrator.adapters import tls
from gpu_orchestrator.adapters.background import wait_until_set
from gpu_orchestrator.adapters.kube import errors
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.informer.watch import Watch
from gpu_orchestrator.adapters.kube.retry import Backoff
from gpu_orchestrator.api import names
from gpu_orchestrator.api.webhook_objects import SECRETS, Secret
from gpu_orchestrator.apps.webhook.certificates import rotation, secret
from gpu_orchestrator.apps.webhook.certificates.authority import issue
from gpu_orchestrator.apps.webhook.certificates.bundles import Bundles, Outdated
from gpu_orchestrator.apps.webhook.certificates.content import Content, Leaf
from gpu_orchestrator.apps.webhook.certificates.rotation import Keep, Rules, Step, View
from gpu_orchestrator.apps.webhook.certificates.secret import Unusable
from gpu_orchestrator.apps.webhook.metrics import Metrics

# How long to wait for the watches to show what was written, and at most while nothing is due: clocks jump.
AGAIN_S = 1.0
LONGEST_S = 60.0
BACKOFF = Backoff(base_s=1.0, cap_s=30.0)
RACES = (errors.Conflict, errors.NotFound, Outdated)
FOREIGN = (
    "is not ours and stays as it is; to serve with it, mount it and set certificates: files; "
    "to have certificates made, delete it"
)

log = structlog.get_logger()


class Keeper:
    """A `Certificate`."""

    def __init__(self, client: Client, namespace: str, rules: Rules, metrics: Metrics) -> None:
        self._client, self._namespace, self._rules, self._metrics = client, namespace, rules, metrics
        self._serving, self._has_certificate = tls.ServingContext(), asyncio.Event()
        self._secrets = Watch(
            client, SECRETS, namespace=namespace, fields=f"metadata.name={names.WEBHOOK_SECRET}"
        )
        self._bundles = Bundles(client, namespace)
        self._changed = asyncio.Event()
        for watch in self.watches:
            watch.on_change(lambda _old, _new: self._changed.set())
        self._kept: Content | None = None
        self._read: tuple[Secret, Content | Unusable] | None = None
        self._settled: tuple[Secret | None, float] | None = None
        self.unready = "there is no certificate yet"

    @property
    def watches(self) -> Sequence[Watch[Any]]:
        return [self._secrets, *self._bundles.watches]

    async def ready(self) -> ssl.SSLContext:
        await self._has_certificate.wait()
        return self._serving.ssl

    async def keep(self) -> None:
        failed = 0
        while True:
            self._changed.clear()
            try:
                delay_s, failed = await self._pass(), 0
            except RACES:
                log.debug("another replica was faster, reading again")
                delay_s = AGAIN_S
            except Exception as error:
                delay_s, failed = BACKOFF.delay_s(failed), failed + 1
                write = log.error if isinstance(error, errors.KubeError) else log.exception
                write("certificates cannot be kept right, trying again", error=str(error))
            await wait_until_set(self._changed, min(delay_s, LONGEST_S))

    async def _pass(self) -> float:
        """Take what the Secret holds into use, see that it is trusted, and do what is due. Return after how
        many seconds to look again."""
        found = self._secrets.store.get(f"{self._namespace}/{names.WEBHOOK_SECRET}")
        content = self._content(found) if found else None
        if isinstance(content, Unusable):
            if content.is_foreign:
                return LONGEST_S
            content = None
        if found and content:
            self._use(content)
            await self._bundles.repair(found, content.bundle)
        settled_s = self._settled_s(found, content)
        view = View(content, self._kept, settled_s, time.time(), may_others=self._bundles.show_any())
        step = rotation.decide(view, self._rules)
        if isinstance(step, Keep):
            return step.for_s
        await self._write(step, view, found)
        return AGAIN_S

    def _content(self, found: Secret) -> Content | Unusable:
        """Read the Secret, once for each version."""
        if self._read is None or self._read[0] is not found:
            self._read = found, secret.read(found)
            if isinstance(wrong := self._read[1], Unusable):
                self._tell(wrong)
        return self._read[1]

    def _tell(self, wrong: Unusable) -> None:
        name = f"Secret {self._namespace}/{names.WEBHOOK_SECRET}"
        says = f"{name} {wrong.why}; it {FOREIGN if wrong.is_foreign else 'is made again'}"
        log.error("the Secret of certificates cannot be used", error=says)
        if self._kept is None:
            self.unready = says

    def _use(self, content: Content) -> None:
        leaf = content.serving
        if self._kept is None or self._kept.serving != leaf:
            self._serving.use(tls.server_from_pem(f"{leaf.pem}{leaf.key_pem}".encode()))
            self._metrics.certificate_expiry.set(leaf.ends_s)
            log.info("certificate loaded", expires=_day(leaf))
        self._kept, self.unready = content, ""
        self._has_certificate.set()

    def _settled_s(self, found: Secret | None, content: Content | None) -> float | None:
        """Return for how long the Secret has been as it is, or missing, while the configurations showed its
        bundle."""
        if content and not self._bundles.show(content.bundle):
            self._settled = None
            return None
        now_s = asyncio.get_running_loop().time()
        if self._settled is None or self._settled[0] is not found:
            self._settled = found, now_s
        return now_s - self._settled[1]

    async def _write(self, step: Step, view: View, found: Secret | None) -> None:
        made = None
        if rotation.needs_leaf(step):
            made = issue(self._rules.names, now_s=view.now_s, life_s=self._rules.life_s)
        content = rotation.perform(step, view, made)
        if found is None:
            await self._client.create(SECRETS, secret.manifest(content), self._namespace)
        else:
            await self._client.patch(
                SECRETS, names.WEBHOOK_SECRET, secret.patch(content, found), self._namespace
            )
        name = type(step).__name__
        self._metrics.certificate_steps.labels(name).inc()
        log.info("certificates changed", step=name, why=getattr(step, "why", ""))


def _day(leaf: Leaf) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(leaf.ends_s))
