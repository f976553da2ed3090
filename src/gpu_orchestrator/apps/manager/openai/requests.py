"""The bodies of requests in OpenAI's shape, and the parameters of the tasks that answer them.

The routes under `/v1` decode and translate with it. An option that no handler can honour is refused by name,
because an answer without it would look as if it had been honoured. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, structs

from gpu_orchestrator.api import plain_errors
from gpu_orchestrator.apps.manager import errors

T = TypeVar("T", bound="ModelRequestBody")

NEUTRAL: Mapping[str, Sequence[Any]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "n": (1,),
    "prediction": (),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "web_search_options": (),
}
"""Options of OpenAI that are not supported, and values with which they ask for nothing. Null does, too."""
IGNORED = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
"""Options that do not change which answer is right."""
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
PASSED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
PENALTIES = ("presence_penalty", "frequency_penalty")
"""Without effect at 0, which many clients send."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
Text = Annotated[str, Meta(min_length=1, max_length=200)]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = False
    include_obfuscation: bool | None = False


class ModelRequestBody(msgspec.Struct, frozen=True, kw_only=True):
    model: Text


class Generation(ModelRequestBody, frozen=True, kw_only=True):
    """What requests for text have in common. What is not given is left to the model's handler."""

    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None

    @property
    def stops(self) -> list[str]:
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [each for each in given if each]

    @property
    def wants_usage(self) -> bool:
        """Return whether a stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatMessage(msgspec.Struct, frozen=True):
    """`content` is a text, or a list of parts of type `text`."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: Any = None
    function_call: Any = None


class ChatRequest(Generation, frozen=True, kw_only=True):
    """A conversation to continue. Images, sound and tools are refused; so are other options that are not
    here, but those that change nothing (`user`, `metadata` and the like)."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=1000)]
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None


class CompletionRequest(Generation, frozen=True, kw_only=True):
    """A text to continue: one."""

    prompt: str | list[Any]


class EmbeddingRequest(ModelRequestBody, frozen=True, kw_only=True):
    """Texts to turn into vectors. `base64` is little-endian float32."""

    input: str | list[Any]
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int, Meta(ge=1)] | None = None


def read(body: bytes, kind: type[T]) -> T:
    """Return a body, or raise the error that names what is wrong with it."""
    try:
        given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        raise errors.BadRequest("the body is not a JSON object; send one, as OpenAI's API has it") from error
    except UNREADABLE as error:
        raise errors.BadRequest(f"the body is not valid JSON: {error}") from error
    known = {each.name for each in structs.fields(kind)}
    for name in given.keys() - known - IGNORED:
        _check_neutral(name, given[name], known)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        message = plain_errors.plain(error, body, kind)
        field = next((each for each in sorted(known, key=len, reverse=True) if message.startswith(each)), "")
        raise errors.Unprocessable(message, param=field or None) from error
    except UNREADABLE as error:
        raise errors.BadRequest(f"the body is not valid JSON: {error}") from error


def _check_neutral(name: str, raw: msgspec.Raw, known: set[str]) -> None:
    shown = name[:100]
    if name not in NEUTRAL:
        raise errors.Unprocessable(
            f"unknown option {shown!r}; supported: {', '.join(sorted(known))}",
            param=shown,
            code="unknown_parameter",
        )
    try:
        value = msgspec.json.decode(raw)
    except UNREADABLE as error:
        raise errors.BadRequest(f"the body is not valid JSON: {shown}: {error}") from error
    if value is not None and value not in NEUTRAL[name]:
        only = (
            f"; leave it out, or give {msgspec.json.encode(NEUTRAL[name][0]).decode()}"
            if NEUTRAL[name]
            else ""
        )
        raise errors.Unprocessable(
            f"{shown} is not supported{only or '; leave it out'}", param=shown, code="unsupported_parameter"
        )


def chat_parameters(asked: ChatRequest) -> dict[str, Any]:
    messages = [_message(number, each) for number, each in enumerate(asked.messages)]
    most = asked.max_completion_tokens or asked.max_tokens
    if asked.max_tokens not in (None, most):
        raise _refused(
            "max_tokens", f"max_tokens is {asked.max_tokens} and max_completion_tokens {most}: give one"
        )
    return {"messages": messages, **_sampling(asked, most)}


def completion_parameters(asked: CompletionRequest) -> dict[str, Any]:
    texts = _texts("prompt", asked.prompt)
    if len(texts) > 1:
        raise _refused("prompt", f"prompt has {len(texts)} texts; send one request for each")
    return {"prompt": texts[0], **_sampling(asked, asked.max_tokens)}


def embedding_parameters(asked: EmbeddingRequest) -> dict[str, Any]:
    found: dict[str, Any] = {"texts": _texts("input", asked.input)}
    return found | ({"dimensions": asked.dimensions} if asked.dimensions else {})


def _sampling(asked: Generation, most: int | None) -> dict[str, Any]:
    """Return what was given, so that the handler's own defaults count for the rest."""
    found = {name: getattr(asked, name) for name in PASSED if getattr(asked, name) is not None}
    found |= {name: getattr(asked, name) for name in PENALTIES if getattr(asked, name)}
    if most is not None:
        found["max_tokens"] = most
    if asked.stops:
        found["stop"] = asked.stops
    if asked.stream:
        found["stream"] = True
    elif asked.stream_options is not None:
        raise _refused(
            "stream_options", "stream_options is for streams alone; give stream true, or leave it out"
        )
    return found


def _message(number: int, given: ChatMessage) -> dict[str, str]:
    where = f"messages[{number}]"
    if given.role not in ROLES:
        raise _refused(where, f"{where}.role is {given.role[:40]!r}; give {', '.join(ROLES)}")
    if given.tool_calls or given.function_call:
        raise _refused(where, f"{where} calls tools, which are not supported")
    if given.content is None:
        raise _refused(where, f"{where}.content is missing; give a text")
    if isinstance(given.content, str):
        return {"role": ROLES[given.role], "content": given.content}
    parts = [_part(f"{where}.content[{at}]", each) for at, each in enumerate(given.content)]
    return {"role": ROLES[given.role], "content": "".join(parts)}


def _part(where: str, part: dict[str, Any]) -> str:
    kind, text = part.get("type"), part.get("text")
    if kind != "text" or not isinstance(text, str):
        raise _refused(
            where, f"{where} is of type {str(kind)[:40]!r}; only parts of type 'text' are supported"
        )
    return text


def _texts(name: str, given: str | list[Any]) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    if not texts or not all(isinstance(each, str) for each in texts):
        raise _refused(name, f"{name}: give a text, or a list of texts; tokens are not supported")
    if not all(texts):
        raise _refused(name, f"{name}: a text is empty; give at least one character")
    return texts


def _refused(param: str, message: str) -> errors.Unprocessable:
    return errors.Unprocessable(message, param=param)
