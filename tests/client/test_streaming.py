"""What a client says while it follows partial results, step by step, and what it makes of them."""

from typing import Any

import msgspec
import pytest

from gpu_orchestrator.client import errors, streaming
from gpu_orchestrator.client.steps import Lost, Reply
from tests.client.test_conversation import OK, World, pending

BROKEN = Lost("broken")


def values(first: int, *sent: Any, attempt: int = 1, missed: int = 0) -> bytes:
    place = f"{attempt}-{first + len(sent)}"
    data = msgspec.json.encode({"first": first, "next": place, "missed": missed, "values": sent})
    return b"id: %b\nevent: values\ndata: %b\n\n" % (place.encode(), data)


def began(attempt: int) -> bytes:
    return b'id: %d-0\nevent: attempt\ndata: {"attempt": %d}\n\n' % (attempt, attempt)


def end(status: str = "completed") -> bytes:
    return b"event: end\ndata: %b\n\n" % msgspec.json.encode({"status": status})


MORE = b"event: more\ndata: {}\n\n"


def follow(world: World, after: str = "", *, skip_missed: bool = False) -> list[Any]:
    (task,) = pending("a")
    world.run(streaming.values(world.talk, task, after, skip_missed=skip_missed))
    return world.emitted


def asked(world: World) -> list[str]:
    return [each.path.partition("?")[2] for each in world.asked]


def test_values_are_handed_out_until_the_end() -> None:
    world = World(OK, began(1), values(0, 1, "two"), values(2, [3]), end(), b"")
    assert follow(world) == [1, "two", [3]]
    assert asked(world) == ["reader=key-0"]


def test_lost_connection_goes_on_behind_the_last_value_with_the_same_name() -> None:
    half = values(1, 2)
    world = World(OK, began(1), values(0, 1), half[:20], BROKEN, OK, half, MORE, b"", OK, end(), b"")
    assert follow(world) == [1, 2]
    assert asked(world) == ["reader=key-0", "after=1-1&reader=key-0", "after=1-2&reader=key-0"]


@pytest.mark.parametrize(
    ("after", "answers"),
    [
        pytest.param("", [began(1), values(0, 1), began(2)], id="while it follows"),
        pytest.param("", [began(1), values(0, 1), BROKEN, OK, began(2)], id="while it was away"),
        pytest.param("1-5", [began(2)], id="since another stream"),
    ],
)
def test_new_attempt_is_told_if_values_were_seen(after: str, answers: list[Any]) -> None:
    with pytest.raises(errors.StreamRestarted, match=r"attempt 2 at task a began") as told:
        follow(World(OK, *answers), after)
    assert told.value.attempt == 2


def test_new_attempt_is_no_news_before_the_first_value() -> None:
    assert follow(World(OK, began(1), began(2), values(0, 1, attempt=2), end(), b"")) == [1]


def test_missed_values_are_told_or_skipped() -> None:
    answers = [OK, began(1), values(0, 1), values(5, 6, missed=4), end(), b""]
    world = World(*answers)
    with pytest.raises(errors.ValuesMissed, match="4 values of task a are no longer kept") as told:
        follow(world)
    assert (world.emitted, told.value.count, told.value.after) == ([1], 4, "1-5")
    assert follow(World(*answers), skip_missed=True) == [1, 6]


def test_stream_of_a_failed_task_raises_behind_its_last_value() -> None:
    error = {"type": "Odd", "message": "not 2"}
    info = Reply(200, msgspec.json.encode({"task_id": "a", "status": "failed", "error": error}))
    log = Reply(200, b'{"text": "Traceback (most recent call last):\\n  here\\n", "next": 1}')
    world = World(OK, values(0, 0, 1), end("failed"), b"", info, log)
    with pytest.raises(errors.TaskFailed, match="task a failed: Odd: not 2") as told:
        follow(world)
    assert world.emitted == [0, 1]
    assert "here" in told.value.traceback


def test_stream_of_a_task_that_was_forgotten_says_so() -> None:
    gone = Reply(404, b'{"error": {"message": "there is no task a"}}')
    with pytest.raises(errors.NotFound, match="there is no task a"):
        follow(World(OK, end("gone"), b"", gone))


def test_who_follows_again_has_the_same_name_and_others_another() -> None:
    """The task would wait for the first reader, which has read nothing of the new attempt, for a minute."""
    (task,) = pending("a")
    world = World(OK, began(1), values(0, 1), began(2), OK, began(2), OK, began(2))
    with pytest.raises(errors.StreamRestarted):
        world.run(streaming.values(world.talk, task, "", skip_missed=False))
    again, beside = (streaming.values(world.talk, task, "", skip_missed=False) for _ in range(2))
    world._answer(next(again))
    world._answer(next(beside))
    assert asked(world) == ["reader=key-0", "reader=key-0", "reader=key-1"]
