"""How many members of a gang may start by the quota of their queue, and on which models. Used by `gangs`."""

from bisect import bisect_left
from dataclasses import replace

from gpu_orchestrator.core.gang import Gang
from gpu_orchestrator.core.queues import Full
from gpu_orchestrator.core.request import Request
from gpu_orchestrator.engine.quota import Quota


def within(gang: Gang, quota: Quota) -> Gang | str:
    """Return the members that may start together, the first ones in turn, each with the models on which they
    may; or why too few may."""
    members = gang.members
    queues = {each.queue for each in members}
    if queues == {""}:
        return gang
    if len(queues) > 1:
        return f"its members are in {len(queues)} queues; give all the same"
    answer = quota.judge_together(members)
    if isinstance(answer, Full):
        most = _most(members, gang.least, quota)
        answer = quota.judge_together(members[: max(most, gang.least)])
    if isinstance(answer, Full):
        return answer.message
    may = (_narrowed(each, models) for each, models in zip(members, answer, strict=False))
    return replace(gang, members=tuple(may))


def _most(members: tuple[Request, ...], least: int, quota: Quota) -> int:
    """Return how many of these, in their order, may start together, as far as it is at least that many."""

    def is_too_many(number: int) -> bool:
        return isinstance(quota.judge_together(members[:number]), Full)

    return bisect_left(range(len(members) + 1), True, lo=least, key=is_too_many) - 1


def _narrowed(member: Request, models: tuple[str, ...] | None) -> Request:
    return member if models is None else replace(member, shape=replace(member.shape, models=models))
