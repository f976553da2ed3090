"""A running watch of ConfigMaps, and a second copy built from the handler's calls alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from gpu_orchestrator.adapters.kube.auth import config
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.informer.watch import Watch
from gpu_orchestrator.api.wire import key
from tests.support.kube_objects import CONFIG_MAPS, ConfigMap
from tests.support.patience import PATIENCE_S

# A controller creates this one in every namespace, at any time.
OURS = "metadata.name!=kube-root-ca.crt"


class Follower:
    def __init__(self, watch: Watch[ConfigMap]) -> None:
        self.watch = watch
        self.known: dict[str, ConfigMap] = {}
        self.deleted_uids: set[str] = set()
        self.mistakes: list[str] = []
        self._wakeup = asyncio.Event()
        watch.on_change(self._follow)

    def _follow(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        name = key(new or old or ConfigMap.__new__(ConfigMap))
        if self.known.get(name) != old:
            self.mistakes.append(f"{name}: got the change {old} to {new}, but had {self.known.get(name)}")
        if new is None:
            self.known.pop(name, None)
        else:
            self.known[name] = new
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self.deleted_uids.add(old.metadata.uid)
        if new is not None and new.metadata.uid in self.deleted_uids:
            self.mistakes.append(f"{name}: came back after its deletion")
        self._wakeup.set()

    @property
    def versions(self) -> dict[str, str]:
        return {name: obj.metadata.resource_version for name, obj in self.known.items()}

    async def knows(self, name: str, within_s: float = PATIENCE_S) -> None:
        async with asyncio.timeout(within_s):
            while name not in self.known:
                self._wakeup.clear()
                await self._wakeup.wait()

    async def agrees_with(self, client: Client, namespace: str, within_s: float = PATIENCE_S) -> None:
        """Wait until this copy and the watch's store equal a list from the server."""
        listing = await client.list(CONFIG_MAPS, namespace, fields=OURS)
        truth = {key(obj): obj.metadata.resource_version for obj in listing.items}
        try:
            async with asyncio.timeout(within_s):
                while self.versions != truth:
                    self._wakeup.clear()
                    await self._wakeup.wait()
        except TimeoutError:
            differ = {name for name in {*truth, *self.known} if truth.get(name) != self.versions.get(name)}
            raise AssertionError(f"{len(differ)} differ after {within_s} s: {sorted(differ)[:5]}") from None
        assert {key(obj): obj for obj in self.watch.store} == self.known
        assert self.mistakes == []


@asynccontextmanager
async def following(kubeconfig: Path, namespace: str, **options: Any) -> AsyncIterator[Follower]:
    async with Client.open(config.load(kubeconfig)) as client:
        watch = Watch(client, CONFIG_MAPS, namespace=namespace, fields=OURS, **options)
        follower = Follower(watch)
        task = asyncio.create_task(follower.watch.run())
        try:
            await asyncio.wait_for(follower.watch.synced(), 30)
            yield follower
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
