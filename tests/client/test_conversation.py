"""What a client says to a server, step by step. The server is a list of answers, the clock a number."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.client import errors
from gpu_orchestrator.client.conversation import Conversation
from gpu_orchestrator.client.steps import Ask, Emit, Lost, Open, Pause, Read, Reply, Steps
from gpu_orchestrator.client.tasks import Call, Pending, TaskInfo

URL = "http://gpu.example:8000"
DOWN = Lost("connection refused")
ACCEPTED = Reply(202, b'{"task_id": "a"}')


class World:
    """Answers the steps of a conversation, and moves the clock."""

    def __init__(self, *answers: Any, met: bool = True) -> None:
        self.answers, self.now = list(answers), 0.0
        self.asked: list[Ask] = []
        self.emitted: list[Any] = []
        self.keys = iter(range(100))
        self.talk = Conversation(
            URL, "start one", lambda: self.now, lambda: 1.0, lambda: f"key-{next(self.keys)}", met=met
        )

    def run(self, steps: Steps[Any]) -> Any:
        try:
            step = next(steps)
            while True:
                step = steps.send(self._answer(step))
        except StopIteration as ended:
            return ended.value

    def _answer(self, step: Any) -> Any:
        match step:
            case Emit(value):
                return self.emitted.append(value)
            case Pause(seconds):
                self.now += seconds
                return None
            case Open(request):
                self.asked.append(request)
            case Ask():
                self.asked.append(step)
            case Read(within_s):
                if not self.answers:
                    self.now += within_s
                    return Lost("silence")
        return self.answers.pop(0)


def refusal(status: int, message: str = "no", **details: Any) -> Reply:
    return Reply(status, msgspec.json.encode({"error": {"message": message, "details": details}}))


def pending(*names: str) -> list[Pending[Any]]:
    return [Pending(name, msgspec.json.decode) for name in names]


def told(name: str, status: str = "completed", **rest: Any) -> bytes:
    return b"event: task\ndata: %b\n\n" % msgspec.json.encode({"task_id": name, "status": status, **rest})


END = b"event: end\ndata: null\n\n"
OK = Reply(200)


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param([DOWN], id="lost"),
        pytest.param([DOWN] * 5, id="lost for a while"),
        pytest.param([refusal(503)], id="no leader"),
        pytest.param([Reply(502, b"<html>")], id="a proxy without a server"),
        pytest.param([Reply(429, b"{}", retry_after="7")], id="too many requests"),
    ],
)
def test_submission_is_repeated_with_the_same_key(trouble: list[Any]) -> None:
    world = World(*trouble, ACCEPTED)
    assert world.run(world.talk.submit([Call("echo")])) == ["a"]
    assert {each.headers["Idempotency-Key"] for each in world.asked} == {"key-0"}
    assert len(world.asked) == len(trouble) + 1
    assert world.now >= (7.0 if trouble[0] == Reply(429, b"{}", retry_after="7") else 0.1)


@pytest.mark.parametrize(
    ("answers", "met", "error", "words"),
    [
        pytest.param(
            [DOWN], False, errors.Unreachable, r"\(connection refused\); start one", id="first contact"
        ),
        pytest.param([DOWN] * 99, True, errors.Unreachable, "connection refused", id="away for long"),
        pytest.param([Lost("bad file", lasting=True)], True, errors.Unreachable, "bad file", id="lasting"),
        pytest.param([Reply(429, b"{}", "3600")], True, errors.Busy, "answers with 429", id="in an hour"),
        pytest.param([refusal(401)], True, errors.NotAllowed, "no", id="unknown key"),
        pytest.param([refusal(403)], True, errors.NotAllowed, "no", id="may not"),
        pytest.param([refusal(409, "never", reasons=["x"])], True, errors.Refused, "never", id="never fits"),
        pytest.param(
            [Reply(200, b"<html>")], True, errors.Unreachable, "not a cluster manager", id="a website"
        ),
        pytest.param([Reply(404, b"<html>")], True, errors.Unreachable, "not a cluster manager", id="no API"),
    ],
)
def test_what_cannot_be_mended_is_raised(
    answers: list[Any], met: bool, error: type[Exception], words: str
) -> None:
    world = World(*answers, met=met)
    with pytest.raises(error, match=words) as caught:
        world.run(world.talk.submit([Call("echo")]))
    assert world.now <= world.talk.patience_s
    if isinstance(caught.value, errors.Refused) and caught.value.status == 409:
        assert caught.value.reasons == ["x"]


def test_large_batch_is_cut_and_keeps_its_order() -> None:
    def accepted(first: int, count: int) -> Reply:
        tasks = [{"task_id": str(number)} for number in range(first, first + count)]
        return Reply(202, msgspec.json.encode({"tasks": tasks}))

    world = World(accepted(0, 1000), accepted(1000, 500))
    assert world.run(world.talk.submit([Call("echo")] * 1500)) == [str(number) for number in range(1500)]
    assert [each.headers["Idempotency-Key"] for each in world.asked] == ["key-0", "key-1"]
    world = World(accepted(0, 1000), refusal(403, "quota"))
    with pytest.raises(errors.NotAllowed) as caught:
        world.run(world.talk.submit([Call("echo")] * 1500))
    assert caught.value.submitted == tuple(str(number) for number in range(1000))
    assert caught.value.__notes__ == ["1000 of 1500 tasks were submitted before; `submitted` has their ids"]
    world = World(accepted(0, 1), accepted(1, 1))
    world.run(world.talk.submit([Call("echo", "x" * (3 << 20))] * 2))
    assert [len(each.body or b"") < 4 << 20 for each in world.asked] == [True, True]


def test_call_is_written_in_the_words_of_the_api() -> None:
    call: Call[Any] = Call(
        "echo",
        [1],
        gpus=2,
        gpu_memory="8GB",
        pool="p",
        worker_labels={"a": "b"},
        retries=3,
        model="m",
        timeout=5,
    )
    assert msgspec.json.decode(msgspec.json.encode(call.body())) == {
        "task_type": "echo",
        "parameters": [1],
        "model_name": "m",
        "max_retries": 3,
        "timeout": 5,
        "resources": {"gpus": 2, "gpu_memory": "8GB", "pool": "p", "labels": {"a": "b"}},
    }
    with pytest.raises(TypeError, match="unknown option 'memory'; known: cache, callback_url,"):
        Call("echo", memory="8GB")  # type: ignore[call-overload]


def asked_for(request: Ask) -> list[str]:
    return list(msgspec.json.decode(request.body or b"")["task_ids"])


def test_many_tasks_are_waited_for_with_one_request() -> None:
    names = [str(number) for number in range(500)]
    world = World(OK, *[told(name, result=name) for name in reversed(names)], END, b"")
    assert world.run(world.talk.gather(pending(*names), None, return_exceptions=False)) == names
    assert [asked_for(each) for each in world.asked] == [names]


def test_after_a_lost_stream_the_rest_is_asked_for() -> None:
    first, second = told("b", result=2), told("a", result=1)
    world = World(OK, first[:10], first[10:] + b": nothing new", Lost("reset"), DOWN, OK, second + END, b"")
    assert world.run(world.talk.gather(pending("a", "b", "a"), None, return_exceptions=False)) == [1, 2, 1]
    assert [asked_for(each) for each in world.asked] == [["a", "b"], ["a"], ["a"]]


def test_stream_that_always_breaks_off_is_not_opened_without_pause() -> None:
    world = World(*[answer for _ in range(30) for answer in (OK, b"")])
    with pytest.raises(errors.TimedOut):
        world.run(world.talk.result(pending("a")[0], 100.0))
    assert len(world.asked) <= 30
    assert world.now >= 100.0


def test_waiting_ends_in_time_and_names_what_has_not() -> None:
    world = World(OK, told("a"))
    with pytest.raises(
        errors.TimedOut, match=r"^task b has not ended within 5 s; the server goes on"
    ) as caught:
        world.run(world.talk.wait(pending("a", "b"), 5.0))
    assert [each.id for each in world.emitted] == ["a"]
    assert caught.value.task_ids == ("b",)
    assert world.now == pytest.approx(5.0)
    assert isinstance(caught.value, TimeoutError)


def test_task_that_is_known_to_have_ended_costs_no_request() -> None:
    (handle,) = pending("a")
    handle.known = TaskInfo(task_id="a", status="completed", result=msgspec.Raw(b"7"))
    world = World()
    assert world.run(world.talk.result(handle, None)) == 7


def test_large_result_is_read_apart() -> None:
    world = World(OK, told("a", result=None, result_bytes=9) + END, b"", Reply(200, b'"a large"'))
    assert world.run(world.talk.result(pending("a")[0], None)) == "a large"
    assert world.asked[-1].path == "/api/v1/tasks/a/result"


FAILED = {"error": {"type": "ValueError", "message": "too hot"}}
LOG = b'{"text": "hello\\nTraceback (most recent call last):\\n  f()\\nValueError: too hot\\n", "next": 9}'


@pytest.mark.parametrize(
    ("event", "answers", "error", "message", "traceback"),
    [
        pytest.param(
            told("a", "failed", **FAILED),
            [Reply(200, LOG)],
            errors.TaskFailed,
            "task a failed: ValueError: too hot",
            "Traceback (most recent call last):\n  f()\nValueError: too hot\n",
            id="failed",
        ),
        pytest.param(
            told("a", "failed", **FAILED),
            [refusal(404)],
            errors.TaskFailed,
            "task a failed: ValueError: too hot",
            "",
            id="its log is gone",
        ),
        pytest.param(
            told("a", "cancelled", reason="cancelled"),
            [],
            errors.TaskCancelled,
            "task a was cancelled",
            "",
            id="cancelled",
        ),
        pytest.param(
            told("a", "dead", reason="two workers died"),
            [],
            errors.TaskDead,
            "task a was given up: two workers died",
            "",
            id="dead",
        ),
    ],
)
def test_failure_is_an_error_of_its_kind(
    event: bytes, answers: Sequence[Any], error: type[errors.TaskFailed], message: str, traceback: str
) -> None:
    world = World(OK, event + END, b"", *answers)
    with pytest.raises(errors.TaskFailed) as caught:
        world.run(world.talk.result(pending("a")[0], None))
    assert (type(caught.value), str(caught.value)) == (error, message)
    assert caught.value.traceback == traceback
    assert caught.value.task_id == "a"


def test_gather_raises_the_first_failure_or_collects_all() -> None:
    events = [
        OK,
        told("b", "failed", **FAILED),
        told("a", result=1),
        b'event: missing\ndata: {"task_id": "c"}\n\n',
    ]
    world = World(*events, Reply(200, LOG))
    world.answers[2:] = [Reply(200, LOG)]
    with pytest.raises(errors.TaskFailed, match="too hot"):
        world.run(world.talk.gather(pending("a", "b", "c"), None, return_exceptions=False))
    world = World(*events, END, b"")
    one, failed, missing = world.run(world.talk.gather(pending("a", "b", "c"), None, return_exceptions=True))
    assert (one, type(failed), type(missing)) == (1, errors.TaskFailed, errors.NotFound)


def test_log_is_whole_lines_over_lost_connections() -> None:
    def part(text: str, at: int) -> bytes:
        return b'id: %d\nevent: log\ndata: {"text": "%b", "next": %d}\n\n' % (at, text.encode(), at)

    world = World(
        Reply(200, b'{"text": "one\\ntw", "next": 6}'),
        Reply(200, b'{"text": "", "next": 6}'),
        OK,
        part("o\\n", 8),
        Lost("reset"),
        OK,
        part("three", 13) + END,
    )
    world.run(world.talk.logs("a", follow=True))
    assert world.emitted == ["one", "two", "three"]
    assert [each.path.rpartition("/")[2] for each in world.asked] == [
        "logs?after=0",
        "logs?after=6",
        "logs?after=6",
        "logs?after=8",
    ]


def test_events_go_on_after_the_last_one() -> None:
    events = [b'id: %d\nevent: task_started\ndata: {"data": {"n": %d}}\n\n' % (at, at) for at in (1, 2)]
    world = World(OK, b": from here on\nid: 0\n\n" + events[0], b"", OK, events[1])
    steps = world.talk.events("")
    step = next(steps)
    while len(world.emitted) < 2:
        step = steps.send(world._answer(step))
    assert [(each.id, each.name, each.data) for each in world.emitted] == [
        ("1", "task_started", {"n": 1}),
        ("2", "task_started", {"n": 2}),
    ]
    assert [each.path for each in world.asked] == ["/api/v1/events", "/api/v1/events?after=1"]


def test_cancel_says_which_were_still_to_be_cancelled() -> None:
    outcomes = [("a", "cancelled", ""), ("b", "completed", "task b is completed already")]
    tasks = [{"task_id": name, "status": status, "error": error} for name, status, error in outcomes]
    world = World(Reply(200, msgspec.json.encode({"tasks": tasks})))
    assert world.run(world.talk.cancel(["a", "b"])) == {"a": True, "b": False}
    gone = [{"task_id": "c", "status": "", "error": "there is no task c"}]
    world = World(Reply(200, msgspec.json.encode({"tasks": gone})))
    with pytest.raises(errors.NotFound, match="there is no task c"):
        world.run(world.talk.cancel(["c"]))


def test_own_idempotency_key_is_the_only_one_that_is_sent() -> None:
    world = World(ACCEPTED, ACCEPTED)
    assert world.run(world.talk.submit([Call("echo", idempotency_key="nightly")])) == ["a"]
    world.run(world.talk.submit([Call("echo")]))
    own, made = world.asked
    assert b'"idempotency_key":"nightly"' in (own.body or b"")
    assert own.headers == {}, "a server refuses a task with two keys"
    assert made.headers == {"Idempotency-Key": "key-0"}


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([OK, b"<html>"], id="a page"),
        pytest.param([OK, b'{"task_id": "a"}'], id="something else"),
        pytest.param([Reply(302)], id="the way to a login"),
        pytest.param([Reply(204)], id="nothing"),
    ],
)
def test_stream_of_another_server_is_not_waited_for(answers: list[Any]) -> None:
    """It would be asked again without end."""
    world = World(*answers)
    with pytest.raises(errors.Unreachable, match="is not a cluster manager; check the address"):
        world.run(world.talk.result(pending("a")[0], None))
