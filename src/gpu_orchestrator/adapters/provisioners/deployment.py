"""Workers as the replicas of a Deployment.

A pod that was drained gets the lowest deletion cost, and then the replicas become fewer: the Deployment's
controller ends that pod, which gives its worker the usual time. Workers are called as their pods. Needs `get`
and `patch` of the Deployment's scale, and `patch` of pods in its namespace (config/autoscaler).
"""

from gpu_orchestrator.adapters.kube import errors
from gpu_orchestrator.adapters.kube.client import Client, Patch
from gpu_orchestrator.adapters.kube.transport import codec
from gpu_orchestrator.adapters.kube.transport.base import Request
from gpu_orchestrator.adapters.kube.transport.urls import target
from gpu_orchestrator.adapters.provisioners.provisioner import CannotScale, Wish
from gpu_orchestrator.api.pod import PODS
from gpu_orchestrator.api.scale import DEPLOYMENT_SCALES, Scale

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
LOWEST = "-2147483647"
MANAGER = "gpu-orchestrator-autoscaler"
TRIES = 5


class Deployment:
    name = "kubernetes"
    tells_to_leave = False

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self._client, self._namespace, self._deployment = client, namespace, name
        self._removed: set[str] = set()
        """Workers that stop and for which there are fewer replicas already."""

    async def scale(self, wish: Wish) -> None:
        """Try again from what is there now if somebody was faster: the Deployment's controller writes to it
        with each pod that starts."""
        for left in reversed(range(TRIES)):
            try:
                await self._scale(wish)
                return
            except errors.KubeError as error:
                if not left or not isinstance(error, errors.Conflict):
                    raise CannotScale(str(error)) from error

    async def close(self) -> None:
        await self._client.transport.close()

    async def _scale(self, wish: Wish) -> None:
        self._removed &= set(wish.stopping)
        scale = await self._read()
        going = [name for name in wish.stopping if name not in self._removed]
        # Never fewer than what was drained: somebody may have asked for more replicas by hand.
        replicas = max(wish.wanted, scale.spec.replicas - len(going))
        if replicas < scale.spec.replicas:
            for name in going:
                await self._mark(name, is_online=name in wish.online)
        if replicas != scale.spec.replicas:
            await self._write(scale, replicas)
        self._removed |= set(going)

    async def _read(self) -> Scale:
        operation = errors.Operation("get", "deployments/scale", "apps", self._deployment, self._namespace)
        path = target(DEPLOYMENT_SCALES, self._deployment, self._namespace, "scale")
        return codec.decode(
            DEPLOYMENT_SCALES, await self._client.send(operation, Request("GET", path), idempotent=True)
        )

    async def _mark(self, pod: str, *, is_online: bool) -> None:
        """Have the Deployment's controller choose this pod. If it cannot, it would end another one, with its
        tasks."""
        body = {"metadata": {"annotations": {DELETION_COST: LOWEST}}}
        try:
            await self._client.patch(PODS, pod, body, self._namespace, kind=Patch.MERGE, manager=MANAGER)
        except errors.NotFound:
            if is_online:
                raise CannotScale(
                    f"worker {pod} is drained, but there is no pod {pod} in {self._namespace}: "
                    "let workers be called as their pods, which they are without --name"
                ) from None

    async def _write(self, scale: Scale, replicas: int) -> None:
        """Write it if nobody has changed the Deployment since."""
        body = {
            "metadata": {"resourceVersion": scale.metadata.resource_version},
            "spec": {"replicas": replicas},
        }
        await self._client.patch(
            DEPLOYMENT_SCALES, self._deployment, body, self._namespace, subresource="scale", manager=MANAGER
        )
