"""The chunks of a streamed answer, from what a task sends before its end. Pure; `http/openai_answer.py` sends
them."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from gpu_orchestrator.apps.manager.openai import answers
from gpu_orchestrator.apps.manager.openai.answers import Generated, Head

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


class StopFilter:
    """Lets a text through, piece by piece, up to the first of the stops. Holds back what may be the
    beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops, self._held, self.is_over = stops, "", False

    def feed(self, piece: str) -> str:
        """Return what may be sent now."""
        if self.is_over or not self._stops:
            return "" if self.is_over else piece
        text = self._held + piece
        shown = answers.cut(text, self._stops)
        if len(shown) < len(text):
            self.is_over, self._held = True, ""
            return shown
        held = max((_beginning(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def rest(self) -> str:
        """Return what was held back, once no more will come."""
        held, self._held = self._held, ""
        return held


def _beginning(text: str, stop: str) -> int:
    """Return the length of the longest end of the text with which the stop begins."""
    most = min(len(text), len(stop) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(stop[:size])), 0)


class Chunks(Protocol):
    """Makes the chunks of one kind of answer."""

    def first(self) -> bytes: ...

    def piece(self, text: str) -> bytes: ...

    def last(self, finish_reason: str) -> bytes: ...

    def usage(self, found: Generated) -> bytes: ...


class ChatChunks:
    """`with_usage`: every chunk has the field, and one more at the end fills it."""

    def __init__(self, head: Head, *, with_usage: bool) -> None:
        self._base: dict[str, Any] = {
            "id": answers.chat_id(head),
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
        } | ({"usage": None} if with_usage else {})

    def first(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, text: str) -> bytes:
        return self._chunk({"content": text})

    def last(self, finish_reason: str) -> bytes:
        return self._chunk({}, finish_reason)

    def usage(self, found: Generated) -> bytes:
        return _event(self._base | {"choices": [], "usage": answers.usage(found)})

    def _chunk(self, delta: dict[str, str], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _event(self._base | {"choices": [choice]})


class CompletionChunks:
    def __init__(self, head: Head, *, with_usage: bool) -> None:
        self._base: dict[str, Any] = {
            "id": answers.completion_id(head),
            "object": "text_completion",
            "created": head.created,
            "model": head.model,
        } | ({"usage": None} if with_usage else {})

    def first(self) -> bytes:
        return b""

    def piece(self, text: str) -> bytes:
        return self._chunk(text)

    def last(self, finish_reason: str) -> bytes:
        return self._chunk("", finish_reason)

    def usage(self, found: Generated) -> bytes:
        return _event(self._base | {"choices": [], "usage": answers.usage(found)})

    def _chunk(self, text: str, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
        return _event(self._base | {"choices": [choice]})


def text_of(values: Sequence[msgspec.Raw]) -> str:
    """Return the text of partial results: each is a text, or an object with `text`; others have none."""
    return "".join(_text(msgspec.json.decode(each)) for each in values)


def _text(value: Any) -> str:
    found = value.get("text") if isinstance(value, dict) else value
    return found if isinstance(found, str) else ""


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % _encode(chunk)
