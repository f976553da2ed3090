"""What is wrong with a body or with parameters, said plainly."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, TypedDict

import msgspec
import pytest

from gpu_orchestrator.api import plain_errors
from gpu_orchestrator.apps.manager import task_schema
from gpu_orchestrator.apps.manager.access.schema import KeyRequest

TASK = {"task_type": "echo"}
KEY = {"name": "ann"}


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        pytest.param(
            task_schema.TaskRequest,
            {**TASK, "resources": {"gpus": 65}},
            "resources.gpus is 65; give at most 64",
            id="too large",
        ),
        pytest.param(
            KeyRequest,
            {**KEY, "scopes": ["nonsense"]},
            "scopes[0] is 'nonsense'; known: admin, read, submit, worker",
            id="not one of",
        ),
        pytest.param(
            KeyRequest,
            {**KEY, "limits": {"foo": 1}},
            "unknown field foo in limits; known: requests_per_minute, requests_per_hour, queued_tasks, "
            "running_tasks, gpu_seconds_per_day, weight, pools",
            id="unknown field",
        ),
        pytest.param(
            task_schema.TaskBatch, {"bodies": []}, "unknown field bodies; known: tasks", id="at the top"
        ),
        pytest.param(
            task_schema.TaskBatch,
            {"x" * 100_000: []},
            f"unknown field {'x' * 60}…; known: tasks",
            id="long unknown field",
        ),
        pytest.param(
            task_schema.TaskRequest,
            {**TASK, "labels": {"x" * 100: 5}},
            f"labels[{'x' * 60}…] is 5; give a text",
            id="long name of a label",
        ),
        pytest.param(task_schema.TaskRequest, {}, "task_type is missing; give a text", id="missing"),
        pytest.param(
            task_schema.TaskBatch,
            {"tasks": [TASK, {}]},
            "tasks[1].task_type is missing; give a text",
            id="of an item",
        ),
        pytest.param(task_schema.TaskRequest, [], "the body is []; give an object", id="not an object"),
        pytest.param(task_schema.TaskRequest, {"task_type": 5}, "task_type is 5; give a text", id="type"),
        pytest.param(
            task_schema.TaskRequest,
            {"task_type": ""},
            "task_type is ''; give at least 1 character",
            id="too short",
        ),
        pytest.param(task_schema.TaskBatch, {"tasks": []}, "tasks is []; give at least 1 item", id="too few"),
        pytest.param(KeyRequest, {**KEY, "expires_in": 0}, "expires_in is 0; give more than 0", id="bound"),
        pytest.param(
            KeyRequest,
            {"name": "a b"},
            "name is 'a b'; use letters, digits and . _ @ -, at most 63 characters, a letter or digit first",
            id="pattern",
        ),
        pytest.param(
            task_schema.TaskRequest,
            {**TASK, "labels": {"a": "x", "b": 5}},
            "labels[b] is 5; give a text",
            id="label",
        ),
        pytest.param(
            task_schema.TaskRequest,
            {**TASK, "labels": {"": "x"}},
            "a name in labels does not fit: give at least 1 character",
            id="name of a label",
        ),
        pytest.param(
            task_schema.TaskRequest,
            {"task_type": "x" * 300},
            f"task_type is '{'x' * 59}…; give at most 200 characters",
            id="long",
        ),
        pytest.param(
            task_schema.TaskRequest,
            {**TASK, "max_retries": 1.5},
            "max_retries is 1.5; give a whole number or null",
            id="one of several types",
        ),
    ],
)
def test_error_names_field_value_and_what_may_be_sent(kind: type, body: Any, said: str) -> None:
    raw = msgspec.json.encode(body)
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(raw, type=kind)
    assert plain_errors.plain(caught.value, raw, kind) == said


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(b'{"task_type":' + b"[" * 5000, "task_type; give a text", id="too deep to read again"),
        pytest.param(b'{"task_type": 1, ', "task_type; give a text", id="ends too early"),
        pytest.param(b'{"task_type": [[1]]}', "task_type is […]; give a text", id="list"),
        pytest.param(
            b'{"task_type": "a", "resources": {"gpus": true}}',
            "resources.gpus is true; give a whole number",
            id="true",
        ),
        pytest.param(
            b'{"task_type": "a", "resources": {"gpus": ' + b"9" * 5000 + b"}}",
            "resources.gpus",
            id="number of thousands of digits",
        ),
    ],
)
def test_body_that_cannot_be_read_again_still_gets_a_sentence(body: bytes, said: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(body, type=task_schema.TaskRequest)
    assert plain_errors.plain(caught.value, body, task_schema.TaskRequest).startswith(said)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Limits(TypedDict):
    lines: int


@dataclass
class Wishes:
    """A shape as a user's handler may have it."""

    colour: Colour
    sizes: dict[str, Annotated[int, msgspec.Meta(ge=0)]]
    limits: Limits | None = None


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        pytest.param(
            Wishes, {"colour": "green", "sizes": {}}, "colour is 'green'; known: red, blue", id="enum"
        ),
        pytest.param(Wishes, {"sizes": {}}, "colour is missing; known: red, blue", id="missing"),
        pytest.param(Wishes, {"colour": "red"}, "sizes is missing; give an object", id="object is missing"),
        pytest.param(
            Wishes,
            {"colour": "red", "sizes": {"long": 5, "short": -1}},
            "sizes[short] is -1; give at least 0",
            id="entry",
        ),
        pytest.param(
            dict[str, int], {"a": 1, "b": "two"}, "[b] is 'two'; give a whole number", id="entry at the top"
        ),
        pytest.param(
            dict[str, dict[str, int]],
            {"a": {"b": "two"}},
            "[a][...]; give a whole number",
            id="entry of an entry",
        ),
        pytest.param(
            Wishes,
            {"colour": "red", "sizes": {}, "limits": {"lines": "x"}},
            "limits.lines is 'x'; give a whole number",
            id="of a typed dict",
        ),
        pytest.param(Wishes, 5, "the whole is 5; give an object", id="not an object"),
    ],
)
def test_any_type_that_a_handler_asks_for_gets_plain_words(kind: Any, body: Any, said: str) -> None:
    raw = msgspec.json.encode(body).decode()
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(raw, type=kind)
    assert plain_errors.plain(caught.value, raw, kind, whole="the whole") == said
