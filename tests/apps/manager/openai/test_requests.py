"""Bodies in OpenAI's shape, as the parameters of tasks, and what is refused."""

from typing import Any

import msgspec
import pytest

from gpu_orchestrator.apps.manager import errors
from gpu_orchestrator.apps.manager.openai import problems, requests
from gpu_orchestrator.apps.manager.openai.requests import ChatRequest, CompletionRequest, EmbeddingRequest

HI: dict[str, Any] = {"role": "user", "content": "hi"}
MAKES: dict[Any, Any] = {
    ChatRequest: requests.chat_parameters,
    CompletionRequest: requests.completion_parameters,
    EmbeddingRequest: requests.embedding_parameters,
}


def parameters(kind: Any, **given: Any) -> Any:
    body = msgspec.json.encode({"model": "m", **({"messages": [HI]} if kind is ChatRequest else {}), **given})
    return MAKES[kind](requests.read(body, kind))


@pytest.mark.parametrize(
    ("kind", "given", "found"),
    [
        pytest.param(ChatRequest, {}, {"messages": [HI]}, id="handler's defaults count"),
        pytest.param(
            ChatRequest,
            {
                "messages": [
                    {
                        "role": "developer",
                        "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}],
                    },
                    {
                        "role": "assistant",
                        "content": "yes",
                        "tool_calls": None,
                        "refusal": None,
                        "audio": None,
                    },
                    {**HI, "name": "ann"},
                ]
            },
            {
                "messages": [
                    {"role": "system", "content": "be kind"},
                    {"role": "assistant", "content": "yes"},
                    HI,
                ]
            },
            id="parts, answers of before, names",
        ),
        pytest.param(
            ChatRequest,
            {"max_completion_tokens": 3, "temperature": 0, "stop": "x", "seed": 1, "presence_penalty": 0},
            {"messages": [HI], "max_tokens": 3, "temperature": 0.0, "stop": ["x"], "seed": 1},
            id="sampling",
        ),
        pytest.param(
            ChatRequest,
            {
                "n": 1,
                "tools": [],
                "logprobs": None,
                "response_format": {"type": "text"},
                "user": "u",
                "store": True,
            },
            {"messages": [HI]},
            id="options that ask for nothing",
        ),
        pytest.param(
            ChatRequest,
            {"stream": True, "stream_options": {"include_usage": True}},
            {"messages": [HI], "stream": True},
            id="stream",
        ),
        pytest.param(CompletionRequest, {"prompt": ["a"]}, {"prompt": "a"}, id="one prompt"),
        pytest.param(EmbeddingRequest, {"input": "a"}, {"texts": ["a"]}, id="one text"),
        pytest.param(
            EmbeddingRequest,
            {"input": ["a", "b"], "dimensions": 2},
            {"texts": ["a", "b"], "dimensions": 2},
            id="texts",
        ),
    ],
)
def test_body_becomes_parameters(kind: Any, given: Any, found: Any) -> None:
    assert parameters(kind, **given) == found


@pytest.mark.parametrize(
    ("kind", "given", "says", "param"),
    [
        pytest.param(ChatRequest, {"n": 2}, "n is not supported; leave it out, or give 1", "n", id="n"),
        pytest.param(ChatRequest, {"logprobs": True}, "logprobs is not supported", "logprobs", id="logprobs"),
        pytest.param(ChatRequest, {"tools": [{}]}, "tools is not supported", "tools", id="tools"),
        pytest.param(ChatRequest, {"audio": {}}, "audio is not supported; leave it out", "audio", id="audio"),
        pytest.param(
            ChatRequest, {"colour": 1}, "unknown option 'colour'; supported: ", "colour", id="unknown"
        ),
        pytest.param(ChatRequest, {"messages": []}, "messages", "messages", id="no messages"),
        pytest.param(ChatRequest, {"messages": "hi"}, "messages", "messages", id="wrong type"),
        pytest.param(ChatRequest, {"temperature": "hot"}, "temperature", "temperature", id="wrong number"),
        pytest.param(ChatRequest, {"max_tokens": 0}, "max_tokens", "max_tokens", id="no tokens"),
        pytest.param(
            ChatRequest,
            {"max_tokens": 1, "max_completion_tokens": 2},
            "give one",
            "max_tokens",
            id="two bounds",
        ),
        pytest.param(
            ChatRequest, {"stream_options": {}}, "for streams alone", "stream_options", id="no stream"
        ),
        pytest.param(
            ChatRequest,
            {"messages": [{"role": "tool", "content": "x"}]},
            ".role is 'tool'",
            "messages[0]",
            id="role",
        ),
        pytest.param(
            ChatRequest,
            {"messages": [HI, {"role": "user"}]},
            ".content is missing",
            "messages[1]",
            id="no content",
        ),
        pytest.param(
            ChatRequest,
            {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
            "calls tools",
            "messages[0]",
            id="tool calls",
        ),
        pytest.param(
            ChatRequest,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "of type 'image_url'",
            "messages[0].content[0]",
            id="image",
        ),
        pytest.param(
            CompletionRequest, {"prompt": ["a", "b"]}, "one request for each", "prompt", id="prompts"
        ),
        pytest.param(
            CompletionRequest, {"prompt": [1, 2]}, "tokens are not supported", "prompt", id="tokens"
        ),
        pytest.param(CompletionRequest, {"prompt": ""}, "is empty", "prompt", id="empty"),
        pytest.param(EmbeddingRequest, {"input": []}, "give a text", "input", id="no input"),
        pytest.param(
            EmbeddingRequest,
            {"input": "a", "encoding_format": "hex"},
            "encoding_format",
            "encoding_format",
            id="format",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(kind: Any, given: Any, says: str, param: str) -> None:
    with pytest.raises(errors.Unprocessable) as refused:
        parameters(kind, **given)
    shown = problems.shape_of(refused.value).error
    assert (says in shown.message, shown.param, shown.type) == (True, param, "invalid_request_error")
    assert problems.status_of(refused.value) == 400


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[1]",
        b"{",
        b'{"model": "m", "n": [}',
        b'{"model": "\xff"}',
        b"[" * 5000,
        b'{"model": "\\ud800"}',
    ],
)
def test_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(errors.BadRequest):
        requests.read(body, ChatRequest)
