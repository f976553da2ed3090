"""What queues may use, what they use, and what they say when that is all."""

from collections.abc import Mapping
from math import nan
from typing import Any

import pytest

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import Device
from gpu_orchestrator.core.queue_terms import QueueTerms
from gpu_orchestrator.core.queue_usage import usages
from gpu_orchestrator.core.queues import MOST_DEPTH, Full, Queues, amounts_of, milli_of
from gpu_orchestrator.core.request import Shape
from tests.support.builders import request

H100, L4 = "H100", "L4"
G = 1000


def queue(name: str, parent: str = "", **terms: Any) -> QueueTerms:
    return QueueTerms(name, parent, **terms)


def tree(*terms: QueueTerms, **used: Mapping[str, int]) -> Queues:
    """Queues of which some are used, by model, each a placement with the queue's name as its key."""
    queues = Queues()
    for each in terms:
        queues.update(each)
    for name, amounts in used.items():
        queues.take(f"in {name}", name, tuple((model, milli * G) for model, milli in amounts.items()))
    return queues


def judge(queues: Queues, name: str, gpus: int, *models: str) -> str | tuple[str, ...] | None:
    answer = queues.judge(name, gpus * G, models, lambda: (H100, L4))
    return answer.message if isinstance(answer, Full) else answer


@pytest.mark.parametrize(
    ("terms", "used", "gpus", "answer"),
    [
        pytest.param(queue("a"), {L4: 500}, 8, None, id="no limit"),
        pytest.param(queue("a", limit={"*": 32 * G}), {L4: 24}, 8, None, id="just within its limit"),
        pytest.param(
            queue("a", limit={"*": 32 * G}), {L4: 25}, 8, "queue a: 25 of 32 GPUs used", id="beyond its limit"
        ),
        pytest.param(
            queue("a", limit={"*": 4 * G}),
            {},
            8,
            "queue a: 8 GPUs asked for, and it may use 4 at most",
            id="never",
        ),
        pytest.param(
            queue("a", guaranteed={"*": 8 * G}, borrowing=False),
            {L4: 8},
            1,
            "queue a: 8 of 8 guaranteed GPUs used",
            id="borrows nothing",
        ),
        pytest.param(queue("a", guaranteed={"*": 8 * G}), {L4: 8}, 1, None, id="borrows"),
        pytest.param(queue("a", limit={H100: 16 * G}), {H100: 16}, 1, (L4,), id="no more of one model"),
        pytest.param(
            queue("a", limit={H100: 2 * G, L4: 0}),
            {H100: 2},
            1,
            "queue a: 2 of 2 H100 used, and no more of any other model",
            id="no more of any model",
        ),
        pytest.param(
            queue("a", guaranteed={H100: 2 * G}, borrowing=False),
            {},
            1,
            (H100,),
            id="what is guaranteed of one model is no other",
        ),
        pytest.param(
            queue("a", guaranteed={"*": 4 * G, H100: 2 * G}, borrowing=False),
            {H100: 2},
            2,
            (L4,),
            id="of all that is guaranteed, a part is of one model",
        ),
    ],
)
def test_what_may_start(
    terms: QueueTerms, used: dict[str, int], gpus: int, answer: str | tuple[str, ...] | None
) -> None:
    assert judge(tree(terms, a=used), "a", gpus) == answer


def test_model_that_is_asked_for_is_named() -> None:
    queues = tree(queue("a", limit={H100: 2 * G}), a={H100: 2})
    assert judge(queues, "a", 1, H100) == "queue a: 2 of 2 H100 used"
    assert judge(queues, "a", 1, H100, L4) == (L4,)


def test_queue_above_has_no_room() -> None:
    """It says which of the queues below it have more than they are guaranteed."""
    queues = tree(
        queue("ml-team", limit={"*": 32 * G}),
        queue("vision", "ml-team", guaranteed={"*": 24 * G}),
        queue("research", "ml-team"),
        vision={L4: 24},
        research={L4: 8},
    )
    assert judge(queues, "vision", 1) == "queue ml-team: 32 of 32 GPUs used, 8 borrowed by research"


def test_queue_is_guaranteed_what_those_below_it_are() -> None:
    """Or its own members could not use what they are guaranteed."""
    queues = tree(
        queue("org", borrowing=False),
        queue("a", "org", guaranteed={H100: 4 * G}),
        queue("b", "org", guaranteed={"*": 2 * G}),
        a={H100: 4},
    )
    assert judge(queues, "b", 2) is None
    assert judge(queues, "b", 3) == "queue org: 4 of 6 guaranteed GPUs used"


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        pytest.param([queue("a", "b")], "queue a: queue b above it does not exist", id="unknown parent"),
        pytest.param([queue("a", "a")], "queue a: the queues above it form a circle", id="its own parent"),
        pytest.param(
            [queue("a", "b"), queue("b", "c"), queue("c", "b")],
            "queue a: the queues above it form a circle",
            id="circle",
        ),
        pytest.param(
            [queue("a", weight=0.0)],
            "queue a: has the weight 0; give one above 0 and up to 1e+06",
            id="weight",
        ),
        pytest.param(
            [queue("a", weight=nan)],
            "queue a: has the weight nan; give one above 0 and up to 1e+06",
            id="no number",
        ),
        pytest.param(
            [queue("a", "b"), queue("b", limit={"*": -1})],
            "queue a: queue b has -1 milli-GPUs of * as limit; give 0 to 9007199254740992",
            id="absurd amount above it",
        ),
        pytest.param(
            [
                queue("a", "0"),
                *(queue(f"{i}", f"{i + 1}") for i in range(MOST_DEPTH)),
                queue(f"{MOST_DEPTH}"),
            ],
            f"queue a: more than {MOST_DEPTH} queues are above each other",
            id="too deep",
        ),
        pytest.param([], "queue a: does not exist", id="unknown"),
    ],
)
def test_queue_that_makes_no_sense_admits_nothing_and_says_why(terms: list[QueueTerms], problem: str) -> None:
    queues = tree(*terms)
    assert queues.problem("a") == problem
    assert judge(queues, "a", 1) == problem


def test_order_of_declarations_does_not_matter() -> None:
    """A placement may be known before its queue, and a queue before its parent."""
    queues = Queues()
    queues.take("p", "a", ((L4, 4 * G),))
    queues.update(queue("a", "org"))
    assert queues.problem("a")
    queues.update(queue("org", limit={"*": 4 * G}))
    assert judge(queues, "a", 1) == "queue org: 4 of 4 GPUs used"
    assert queues.let_go("p") == "a"
    assert judge(queues, "a", 4) is None


def test_queue_that_is_removed_keeps_what_it_uses() -> None:
    queues = tree(queue("a", limit={"*": 4 * G}), a={L4: 4})
    queues.remove("a")
    assert judge(queues, "a", 1) == "queue a: does not exist"
    queues.update(queue("a", limit={"*": 4 * G}))
    assert judge(queues, "a", 1) == "queue a: 4 of 4 GPUs used"


def test_usage_for_the_status() -> None:
    queues = tree(
        queue("ml", guaranteed={"*": 8 * G}, weight=3.0),
        queue("research", guaranteed={"*": 2 * G}),
        queue("idle", weight=2.0),
        ml={L4: 4},
        research={L4: 1, H100: 3},
    )
    found = usages(queues, {"ml": 2}, free_milli=1 * G)
    assert found["ml"].used == {"*": 4 * G, L4: 4 * G}
    assert found["research"].borrowed == {"*": 2 * G, L4: 2 * G, H100: 2 * G}
    assert found["ml"].lent == {"*": 2 * G}, (
        "four are not used, one is free, research has two more than its own"
    )
    assert (found["ml"].pending, found["ml"].share, found["research"].share) == (2, 0.75, 0.25)
    assert found["idle"].share == pytest.approx(2 / 6)


def test_share_of_a_queue_is_a_part_of_its_parents() -> None:
    queues = tree(
        queue("org"),
        queue("a", "org"),
        queue("b", "org"),
        queue("other"),
        a={L4: 1},
        b={L4: 1},
        other={L4: 1},
    )
    found = usages(queues, {}, free_milli=0)
    assert {name: each.share for name, each in found.items()} == {
        "org": 0.5,
        "other": 0.5,
        "a": 0.25,
        "b": 0.25,
    }


@pytest.mark.parametrize(
    ("shape", "milli"),
    [
        pytest.param(request("r", 4).shape, 4000, id="whole devices"),
        pytest.param(request("r", 2, share=250).shape, 500, id="shares"),
        pytest.param(request("r", 1, memory_mib=20 * 1024, shared=True).shape, 250, id="memory"),
        pytest.param(request("r", 1, memory_mib=1, shared=True).shape, 1, id="never nothing"),
        pytest.param(request("r", 0).shape, 0, id="no device"),
        pytest.param(Shape(gpus=2, profile="3g.40gb"), 2 * 428, id="slices"),
    ],
)
def test_what_a_request_counts(shape: Shape, milli: int) -> None:
    assert milli_of(shape) == milli


def test_placement_counts_by_model() -> None:
    given = Placement("p", "a", devices=(0, 3), unnamed=2)
    devices = {0: Device(0, model=L4), 3: Device(3, model=H100)}
    assert amounts_of(given, devices, unnamed=L4) == ((L4, 3 * G), (H100, 1 * G))


def test_slices_count_as_their_part_of_a_gpu() -> None:
    slices = {each: Device(each, model=H100, profile="1g.10gb", milli=142) for each in range(7)}
    given = Placement("p", "a", devices=tuple(slices))
    assert amounts_of(given, slices, unnamed="") == ((H100, 7 * 142),)
