"""Pods and gangs that preempt each other, at random: none is evicted in vain, no room is kept for nobody, and
in the end all is quiet."""

import random
from typing import Any

import pytest

from gpu_orchestrator.core import gang_victims
from gpu_orchestrator.engine.reservation_rules import OFF, ReservationRules
from tests.support.preemption_history import History
from tests.support.scale import Scale
from tests.support.scheduler_objects import pod_group

pytestmark = pytest.mark.looptime

PRIORITIES = (0, 5, 10)
QUIET = 40
"""Looks in which nothing happens any more, more than a minute."""
HOLDS = ReservationRules(most=4, holds=2, hold_after_s=5.0)


def gang(history: History, space: str) -> None:
    rng, name = history.rng, f"g{history.made}"
    size, priority, gpus = rng.choice([2, 2, 3, 4]), rng.choice(PRIORITIES), rng.choice([1, 1, 2, 4])
    least, is_mixed = rng.choice([size, size, rng.randint(1, size)]), rng.random() < 0.5
    terms: dict[str, Any] = {"gang": name, "gang_size": size, "gang_min": least}
    if space == "default" and rng.random() < 0.3:
        group(history, name, least)
        terms = {"schedulingGroup": {"podGroupName": name}}
    elif rng.random() < 0.2:
        terms["topology_required"] = "zone"
    for at in range(size):
        mine = rng.choice(PRIORITIES) if rng.random() < 0.3 else priority
        many = rng.randint(1, 4) if is_mixed else gpus
        history.add(f"{name}-{at}", space, gpus=many, priority=mine, **terms)


def group(history: History, name: str, least: int) -> None:
    mode = history.rng.choice(["PodGroup", "Pod"])
    history.world.pod_group(pod_group(name, least, disruptionMode=mode))
    history.groups.append(name)


def happen(history: History, space: str) -> None:
    rng = history.rng
    match rng.choice(["gang"] * 6 + ["single"] * 5 + ["delete"] * 3 + ["node", "replace", "budget", "group"]):
        case "gang":
            gang(history, space)
        case "single":
            gpus, priority = rng.choice([1, 2, 4]), rng.choice(PRIORITIES)
            history.add(f"s{history.made}", space, gpus=gpus, priority=priority)
        case "delete" if pods := list(history.world.pods):
            history.delete(f"{(chosen := rng.choice(pods)).metadata.namespace}/{chosen.metadata.name}")
        case "replace" if waiting := history.waiting():
            member = rng.choice(waiting)
            history.delete(f"{member.metadata.namespace}/{member.metadata.name}")
            history.again(member)
        case "node":
            history.turn_node(rng.choice(list(history.zones)))
        case "group" if history.groups:
            group(history, rng.choice(history.groups), rng.randint(1, 4))
        case "budget":
            status = {"disruptionsAllowed": rng.choice([0, 1, 3, 9])}
            meta = {"name": "b", "namespace": "default"}
            history.budgets = [{"metadata": meta, "spec": {"selector": {}}, "status": status}]


async def play(seed: int) -> History:
    rng = random.Random(seed)
    history = History(rng, nodes=rng.choice([2, 3, 4, 8]), reservations=rng.choice([OFF, OFF, HOLDS]))
    spaces = ["default"]
    if rng.random() < 0.5:
        history.queues(ml=6, web=4)
        spaces += ["ml", "web"]
    history.slow, history.fails = rng.choice([0.0, 0.5]), rng.choice([0.0, 0.0, 0.1])
    for _ in range(rng.randint(10, 40)):
        happen(history, rng.choice(spaces))
        await history.step(rng.choice([0.1, 1.0, 1.0, 2.0]))
    history.fails, history.budgets = 0.0, []
    for name in list(history.closed):
        history.turn_node(name)
    return history


async def settle(history: History) -> bool:
    """Return True if after a while nobody is evicted and no room is kept any more."""
    quiet = 0
    for _ in range(4 * QUIET):
        before = len(history.evicted)
        await history.step(1.3)
        quiet = quiet + 1 if len(history.evicted) == before and not history.rooms() else 0
        if quiet == QUIET:
            return True
    return False


async def test_nobody_is_evicted_in_vain_and_in_the_end_all_is_quiet(scale: Scale) -> None:
    """With every other seed, victims are looked for as in a large cluster."""
    for seed in range(scale(test=40, accept=2000)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gang_victims, "FEW", 0 if seed % 2 else gang_victims.FEW)
            history = await play(seed)
            assert await settle(history), (seed, history.rooms(), history.evicted[-4:])
        assert history.wrong == [], seed
