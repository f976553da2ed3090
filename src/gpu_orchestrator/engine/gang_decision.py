"""Decide a gang: where its members go together, within the quota of their queue and the limits of their
flows. Used by `decisions`."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from gpu_orchestrator.core.answer import Placement, Refusal, not_judged
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.gang import Gang, GangRefusal, decide_gang
from gpu_orchestrator.core.policy import Rng
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine import gang_quota
from gpu_orchestrator.engine.fair_share import FairShare
from gpu_orchestrator.engine.gang_members import MOST_KINDS, Members
from gpu_orchestrator.engine.queue import Waiting
from gpu_orchestrator.engine.quota import Quota


class Chosen(NamedTuple):
    waiting: Waiting
    placement: Placement
    cost: float


def judge(
    gang: Members,
    asked: Gang,
    cluster: Cluster,
    quota: Quota,
    cost: Callable[[Request], float],
    rng: Rng,
    steps: list[int],
) -> list[Chosen] | Refusal:
    """Return places for members of the gang with what they cost their flow, or why there are none. `asked` is
    who is decided now, and `steps` is how many the search for them may take."""
    members = gang.waiting
    if gang.has_many_kinds:
        differ = f"its members ask for {len(gang.kinds)} different things"
        said = f"gang {gang.terms.name}: {differ}, more than {MOST_KINDS}"
        return Refusal(len(cluster), gang=said)
    try:
        together = gang_quota.within(asked, quota)
        if isinstance(together, str):
            return Refusal(len(cluster), gang=f"gang {gang.terms.name}: {together}")
        answer = decide_gang(together, cluster, lambda each: members[each.key].policy, rng, steps)
        if isinstance(answer, GangRefusal):
            return answer.refusal
        return [Chosen(members[each.key], each, cost(members[each.key].request)) for each in answer]
    except Exception as error:  # policy and order may be plugins
        return not_judged(len(cluster), error)


def over_limit(gang: Members, fair_share: FairShare, nodes: int) -> Refusal | None:
    """Return why the members, if all of them must start together, are more than their flows may hold."""
    if gang.least < len(gang.waiting):
        return None
    for flow, count in Counter(each.flow for each in gang.waiting.values()).items():
        room = fair_share.room(flow)
        if room is not None and count > room:
            said = f"gang {gang.terms.name}: {count} members, and {flow} may start {room} more now"
            return Refusal(nodes, gang=said)
    return None
