"""What `defrag` does: look at the cluster, say which moves make room, and make them if that is asked for."""

import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_orchestrator.adapters.kube.auth import config
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import KubeError
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.wire import key
from gpu_orchestrator.apps.scheduler.defrag import look, perform, plan
from gpu_orchestrator.apps.scheduler.defrag.look import Seen
from gpu_orchestrator.apps.scheduler.defrag.perform import NotMoved, Performer
from gpu_orchestrator.apps.scheduler.defrag.plan import BadWish, Plan, Wish
from gpu_orchestrator.cli import output, times
from gpu_orchestrator.cli.plain import visible
from gpu_orchestrator.cli.tables import Column
from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.defragment import Moves

COLUMNS = (
    Column("POD"),
    Column("FROM"),
    Column("COULD GO TO"),
    Column("GPUS", 2),
    Column("GPU TIME LOST", 1),
)
NOTHING_CHANGED = "Nothing was changed. With --apply the pods are evicted, and the nodes cordoned meanwhile."


@dataclass(frozen=True, slots=True)
class Options:
    kubeconfig: Path | None
    context: str
    scheduler_name: str
    lease_namespace: str
    applies: bool
    wait_s: float
    as_json: bool


async def run(wish: Wish, options: Options) -> int:
    """Return the exit code: 0 if there is room, or would be after moves; 1 if not."""
    try:
        async with Client.open(config.load(options.kubeconfig, options.context)) as client:
            return await _run(client, wish, options)
    except (KubeError, BadWish, NotMoved) as error:
        output.fail(error)


async def _run(client: Client, wish: Wish, options: Options) -> int:
    performer = Performer(
        client,
        output.note,
        options.lease_namespace,
        options.wait_s,
        time.monotonic,
    )
    rng = random.Random(0)  # noqa: S311 - chooses among equals
    seen = await _look(client, rng, options)
    if options.applies and await performer.open_left(seen.coordinator.stores.nodes):
        seen = await _look(client, rng, options)
    made = plan.make(seen, wish, rng)
    if options.as_json:
        output.show_json(as_json(made))
    else:
        _tell_of_closed(seen)
        _tell(made)
    if not isinstance(made.answer, Moves):
        return 1
    if options.applies and made.answer.moves:
        await performer.perform(made.answer, made.found.pods)
        output.note(f"there is room on {_listed(made.answer.room)}")
    elif made.answer.moves and not options.as_json:
        output.say("", NOTHING_CHANGED)
    return 0


async def _look(client: Client, rng: random.Random, options: Options) -> Seen:
    names = {"scheduler_name": options.scheduler_name, "lease_namespace": options.lease_namespace}
    return await look.look(client, rng, **names)


def _tell_of_closed(seen: Seen) -> None:
    for node in seen.coordinator.stores.nodes:
        if perform.is_left(node, datetime.now(UTC)):
            name = node.metadata.name
            output.note(f"{name} was left cordoned by a run that was killed; kubectl uncordon {name}")


def _tell(made: Plan) -> None:
    answer, shape = made.answer, made.wanted[0].shape
    pods = f"{len(made.wanted)} {'pod' if len(made.wanted) == 1 else 'pods'}"
    wanted = f"{pods} with {shape.gpus} {'GPU' if shape.gpus == 1 else 'GPUs'}"
    if not isinstance(answer, Moves):
        output.say(visible(f"no room for {wanted}: {answer.message}"), *_kept(made))
        return
    if not answer.moves:
        output.say(f"there is room for {wanted} already: {_listed(answer.room)}")
        return
    count, lost_s = answer.cost
    moved = "1 pod moves" if count == 1 else f"{count} pods move"
    output.say(f"room for {wanted} on {_listed(answer.room)} if {moved}:")
    output.show_table(COLUMNS, [_row(each) for each in _moved(made)])
    output.say(f"{times.duration(lost_s)} of GPU time would be lost", *_kept(made))


def _kept(made: Plan) -> list[str]:
    """Return what is said of pods that stay."""
    found = made.found
    kept = sum(count for _, count in found.kept)
    if not kept:
        return []
    reasons = ", ".join(f"{count}: {why}" for why, count in found.kept)
    return [f"{len(found.pods)} of {len(found.pods) + kept} bound pods may be moved; of the others {reasons}"]


@dataclass(frozen=True, slots=True)
class Moved:
    pod: Pod
    held: Placement
    place: Placement
    lost_gpu_s: float


def _moved(made: Plan) -> list[Moved]:
    """Return the pods that move. What a gang loses is said with its first pod."""
    found: list[Moved] = []
    for move in made.answer.moves if isinstance(made.answer, Moves) else ():
        held = {each.key: each for each in move.movable.held.placements}
        for at, place in enumerate(move.places):
            lost = 0.0 if at else move.movable.held.lost_gpu_s
            found.append(Moved(made.found.pods[place.key], held[place.key], place, lost))
    return found


def _row(each: Moved) -> tuple[object, ...]:
    lost = times.duration(each.lost_gpu_s)
    return key(each.pod), each.held.node, each.place.node, len(each.place.devices), lost


def _listed(room: tuple[Placement, ...]) -> str:
    return ", ".join(dict.fromkeys(each.node for each in room))


def as_json(made: Plan) -> dict[str, Any]:
    """Return the plan as JSON shows it."""
    answer = made.answer
    common = {
        "wanted": {"pods": len(made.wanted), "gpus": made.wanted[0].shape.gpus},
        "movablePods": len(made.found.pods),
        "keptPods": dict(made.found.kept),
    }
    if not isinstance(answer, Moves):
        return {"possible": False, "message": answer.message, "moves": [], "room": [], **common}
    return {
        "possible": True,
        "message": "",
        "room": [{"node": each.node, "devices": list(each.devices)} for each in answer.room],
        "moves": [
            {
                "pod": key(each.pod),
                "uid": each.pod.metadata.uid,
                "from": each.held.node,
                "to": each.place.node,
                "gpus": len(each.place.devices),
                "lostGpuSeconds": round(each.lost_gpu_s, 1),
            }
            for each in _moved(made)
        ],
        "lostGpuSeconds": round(answer.cost[1], 1),
        **common,
    }
