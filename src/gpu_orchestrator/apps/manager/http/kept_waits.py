"""Says of a waiting task what places have to do with it that are kept, for itself or for another. `explain`
calls it."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_orchestrator.apps.manager.fleet import kept_places
from gpu_orchestrator.apps.manager.fleet.kept_places import KeptPlace
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import decide
from gpu_orchestrator.core.policy import Policy
from gpu_orchestrator.core.request import Request


@dataclass(frozen=True, slots=True)
class Beside:
    """`cluster` is what is free for the task, `whole` what would be if no place were kept. The places in
    `shut` keep it out, and `own` is what is said of its own."""

    cluster: Cluster
    whole: Cluster
    shut: Sequence[KeptPlace] = ()
    own: str = ""

    def why(self, manager: Manager, wanted: Request, policy: Policy) -> str:
        """Return which places keep out a task that was refused; empty if it would not fit there."""
        answer = decide(wanted, self.whole, policy, manager.chance) if self.shut else None
        if not isinstance(answer, Placement):
            return ""
        where = (each for each in self.shut if answer.node in each.workers)
        return "; ".join(each.words_for(wanted.tenant) for each in where)


async def beside(manager: Manager, wanted: Request, cluster: Cluster) -> Beside:
    places, now = await manager.kept_places(), manager.leader.clock.now()
    shut = [each for each in places if each.keeps_out(wanted, now)]
    own = kept_places.words_of(places, wanted.key)
    return Beside(kept_places.beside(cluster, shut), cluster, shut, own)
