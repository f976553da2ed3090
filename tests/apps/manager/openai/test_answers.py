"""Results of tasks as answers in OpenAI's shape: whole, in chunks, or as errors."""

from typing import Any

import msgspec
import pytest

from gpu_orchestrator.apps.manager import errors
from gpu_orchestrator.apps.manager.openai import answers, chunks, problems
from gpu_orchestrator.apps.manager.openai.answers import Embedded, Generated, Head

HEAD = Head("t1", 7, "m")


@pytest.mark.parametrize(
    ("result", "sent", "found"),
    [
        pytest.param({"text": "a", "tokens": 1}, "", Generated("a"), id="text alone"),
        pytest.param("a", "", Generated("a"), id="not even an object"),
        pytest.param(None, "ab", Generated("ab"), id="a generator that returns nothing"),
        pytest.param(
            {"text": "", "finish_reason": "length", "prompt_tokens": 1, "completion_tokens": 2},
            "",
            Generated("", "length", 1, 2),
            id="all",
        ),
    ],
)
def test_result_of_a_handler_is_read(result: Any, sent: str, found: Generated) -> None:
    assert answers.generated(msgspec.json.encode(result), "m", sent) == found


@pytest.mark.parametrize("result", [None, {"embeddings": [[1.0]]}, {"text": None}, 3])
def test_result_of_another_kind_says_so(result: Any) -> None:
    with pytest.raises(problems.TaskFailed, match="model 'm' answered without 'text'"):
        answers.generated(msgspec.json.encode(result), "m")


def test_vectors_are_numbers_or_base64() -> None:
    found = Embedded([[1.0, -2.5]], tokens=3)
    assert answers.embeddings(HEAD, found, as_base64=False).data[0].embedding == [1.0, -2.5]
    assert answers.embeddings(HEAD, found, as_base64=True).data[0].embedding == "AACAPwAAIMA="


@pytest.mark.parametrize(
    ("pieces", "stops", "sent"),
    [
        pytest.param(["ab", "c"], [], ["ab", "c", ""], id="no stop"),
        pytest.param(["ab", "c"], ["bc"], ["a", "", ""], id="a stop in two pieces"),
        pytest.param(["ab", "d"], ["bc"], ["a", "bd", ""], id="only its beginning"),
        pytest.param(["ab"], ["bc"], ["a", "b"], id="its beginning at the end"),
        pytest.param(["aXbYc", "d"], ["Y", "X"], ["a", "", ""], id="the first of two"),
        pytest.param(["aab"], ["ab"], ["a", ""], id="repeated beginning"),
    ],
)
def test_stream_ends_before_a_stop(pieces: list[str], stops: list[str], sent: list[str]) -> None:
    kept = chunks.StopFilter(stops)
    assert [*(kept.feed(each) for each in pieces), kept.rest()] == sent
    assert "".join(sent) == answers.cut("".join(pieces), stops)


def test_answer_that_was_cut_has_stopped() -> None:
    assert answers.stopped(Generated("a.b", "length"), ["."]) == Generated("a", "stop")
    assert answers.stopped(Generated("ab", "length"), ["."]) == Generated("ab", "length")


def test_values_without_text_are_passed_over() -> None:
    values = [msgspec.Raw(each) for each in (b'"a"', b'{"text":"b"}', b'{"x":1}', b"3", b'{"text":4}')]
    assert chunks.text_of(values) == "ab"


@pytest.mark.parametrize(
    ("error", "status", "code", "kind"),
    [
        pytest.param("BadParameters", 400, "bad_parameters", "invalid_request_error", id="the client's"),
        pytest.param("ParametersTooLarge", 413, "too_large", "invalid_request_error", id="too large"),
        pytest.param("OutOfMemory", 500, "out_of_memory", "server_error", id="ours"),
        pytest.param("Timeout", 504, "timeout", "server_error", id="late"),
        pytest.param("<b>", 500, "task_failed", "server_error", id="a handler's own"),
    ],
)
def test_failed_task_is_an_error_that_is_not_repeated(error: str, status: int, code: str, kind: str) -> None:
    row = msgspec.json.encode({"type": error, "message": "why", "retryable": False}).decode()
    found = problems.of_task("t1", "failed", row)
    shown = problems.shape_of(found).error
    assert (problems.status_of(found), shown.code, shown.type) == (status, code, kind)
    assert "why" in shown.message
    assert status < 500 or problems.headers_of(found) == {"X-Should-Retry": "false"}


def test_errors_keep_what_clients_act_on() -> None:
    busy, never = errors.TooManyRequests("slow down", 7), errors.Conflict("too large for any GPU")
    assert problems.headers_of(busy) == {"Retry-After": "7"}
    assert problems.headers_of(never) == {"X-Should-Retry": "false"}
    assert problems.shape_of(errors.Unauthorized("no")).error.code == "invalid_api_key"
    assert problems.shape_of(problems.of_task("t", "cancelled", None)).error.message == "task t was cancelled"
