"""Results of tasks as answers in OpenAI's shape. The routes under `/v1` call it. Pure.

A handler for text answers `{"text", "finish_reason", "prompt_tokens", "completion_tokens"}`, one for vectors
`{"embeddings", "tokens"}`: what `text_generation` and `embedding` do. Only the first of each is needed.
"""

import sys
from array import array
from base64 import b64encode
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gpu_orchestrator.apps.manager.openai.problems import TaskFailed
from gpu_orchestrator.apps.manager.schema import Answer

Count = Annotated[int, Meta(ge=0)]


class Generated(msgspec.Struct, frozen=True):
    """The result of a handler for text."""

    text: str
    finish_reason: str = "stop"
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None


class Embedded(msgspec.Struct, frozen=True):
    """The result of a handler for vectors."""

    embeddings: list[list[float]]
    tokens: Count = 0


class OpenAiUsage(Answer, frozen=True):
    """Zeros where the handler counts nothing."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AssistantMessage(Answer, frozen=True):
    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(Answer, frozen=True):
    message: AssistantMessage
    finish_reason: str
    index: int = 0
    logprobs: None = None


class ChatCompletion(Answer, frozen=True):
    """`id` ends with that of the task. In a stream, `chat.completion.chunk` objects come in its place, each
    with a `delta` of the message, and then `[DONE]`."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: OpenAiUsage
    object: str = "chat.completion"


class TextChoice(Answer, frozen=True):
    text: str
    finish_reason: str | None
    index: int = 0
    logprobs: None = None


class Completion(Answer, frozen=True):
    """`id` ends with that of the task. In a stream, each object has a piece of the text."""

    id: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: OpenAiUsage
    object: str = "text_completion"


class OpenAiEmbedding(Answer, frozen=True):
    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingUsage(Answer, frozen=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Answer, frozen=True):
    model: str
    data: list[OpenAiEmbedding]
    usage: EmbeddingUsage
    object: str = "list"


class OpenAiModel(Answer, frozen=True):
    """`loaded`: a worker has it in memory now."""

    id: str
    created: int
    loaded: bool
    owned_by: str = "gpu-orchestrator"
    object: str = "model"


class OpenAiModelList(Answer, frozen=True):
    data: list[OpenAiModel]
    object: str = "list"


class Head(msgspec.Struct, frozen=True):
    """What all objects of one answer share: its task, when it began, and the model as it was asked for."""

    task: str
    created: int
    model: str


def chat(head: Head, found: Generated) -> ChatCompletion:
    choice = ChatChoice(message=AssistantMessage(content=found.text), finish_reason=found.finish_reason)
    return ChatCompletion(
        id=chat_id(head), created=head.created, model=head.model, choices=[choice], usage=usage(found)
    )


def completion(head: Head, found: Generated) -> Completion:
    choice = TextChoice(text=found.text, finish_reason=found.finish_reason)
    return Completion(
        id=completion_id(head), created=head.created, model=head.model, choices=[choice], usage=usage(found)
    )


def embeddings(head: Head, found: Embedded, *, as_base64: bool) -> EmbeddingList:
    data = [
        OpenAiEmbedding(index=at, embedding=_base64(each) if as_base64 else each)
        for at, each in enumerate(found.embeddings)
    ]
    used = EmbeddingUsage(prompt_tokens=found.tokens, total_tokens=found.tokens)
    return EmbeddingList(model=head.model, data=data, usage=used)


def chat_id(head: Head) -> str:
    return f"chatcmpl-{head.task}"


def completion_id(head: Head) -> str:
    return f"cmpl-{head.task}"


def usage(found: Generated) -> OpenAiUsage:
    before, after = found.prompt_tokens or 0, found.completion_tokens or 0
    return OpenAiUsage(prompt_tokens=before, completion_tokens=after, total_tokens=before + after)


def read(result: bytes, kind: Any, model: str) -> Any:
    """Return the result of a task; raise for one that is not what a handler of this kind answers."""
    try:
        return msgspec.json.decode(result, type=kind)
    except msgspec.ValidationError as error:
        needed = "embeddings" if kind is Embedded else "text"
        raise TaskFailed(
            f"model {model!r} answered without {needed!r}, so it cannot serve this route: {error}"[:1000],
            code="wrong_kind_of_model",
        ) from error


def generated(result: bytes, model: str, sent: str = "") -> Generated:
    """Return the text of a result: of an object, a text alone, or what was `sent` before the task ended."""
    if result == b"null" and sent:
        return Generated(sent)
    found = read(result, Generated | str, model)
    return Generated(found) if isinstance(found, str) else found


def cut(text: str, stops: Sequence[str]) -> str:
    """Return a text up to the first of the stops, without it."""
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return text[: min(found)] if found else text


def stopped(found: Generated, stops: Sequence[str]) -> Generated:
    """Return an answer without what follows one of the stops."""
    text = cut(found.text, stops)
    return found if text == found.text else msgspec.structs.replace(found, text=text, finish_reason="stop")


def _base64(vector: list[float]) -> str:
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return b64encode(numbers.tobytes()).decode()
