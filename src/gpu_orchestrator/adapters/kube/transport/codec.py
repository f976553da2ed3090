"""Encode and decode JSON: request bodies for `Client`, objects and lists for `Client` and `Watch`.

The decoder raises RecursionError for objects that are nested too deep, which any user can write. Then the
deep values are cut out, so that the object can be named and its neighbours can be decoded.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec

from gpu_orchestrator.adapters.kube.errors import BadAnswer
from gpu_orchestrator.api import nesting
from gpu_orchestrator.api.wire import Object, ObjectMeta, Resource, Wire

T = TypeVar("T", bound=Object)

OnBad = Callable[[BadAnswer, msgspec.Raw], None]
Body = msgspec.Struct | Mapping[str, Any]

_MARK = f'"{secrets.token_hex(16)}"'.encode()
"""Stands in for a value that was cut out. No user knows it, so no user can write it."""
_AROUND = 2
"""How deep an object is in a page of a list."""


class MetadataOnly(Wire, frozen=True, gc=False):
    """An object of which only the metadata is decoded (`metadata`), or nothing at all (`ignore_answer`)."""

    metadata: ObjectMeta = ObjectMeta()


def ignore_answer(resource: Resource[Any]) -> Resource[MetadataOnly]:
    """Return the resource with its answers left undecoded and empty, for frequent writes that ignore them.
    Such an answer has no name: do not keep it."""
    return replace(resource, type=MetadataOnly)


class ListMeta(Wire, frozen=True, gc=False):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(Wire, Generic[T], frozen=True, gc=False):
    """One page of a list. `items` may be null on the wire."""

    metadata: ListMeta = ListMeta()
    items: list[T] | None = None


class RawPage(Wire, frozen=True, gc=False):
    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


@cache
def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return a cached decoder: making one costs more than using it once."""
    return msgspec.json.Decoder(kind)


_encoder = msgspec.json.Encoder()


def encode(resource: Resource[Any], obj: Body) -> bytes:
    """Encode the object with its apiVersion and kind, which our types need not have."""
    if isinstance(obj, msgspec.Struct):
        body = _encoder.encode(obj)
        if body.find(b'"apiVersion":', 0, 16) >= 0:
            return body
        head = f'{{"apiVersion":"{resource.api_version}","kind":"{resource.kind}"'.encode()
        return head + (b"," + body[1:] if len(body) > 2 else b"}")
    return _encoder.encode({"apiVersion": resource.api_version, "kind": resource.kind, **obj})


def encode_plain(body: Any) -> bytes:
    return _encoder.encode(body)


def decode(resource: Resource[T], body: bytes | msgspec.Raw) -> T:
    if resource.type is MetadataOnly:
        return MetadataOnly()  # type: ignore[return-value]  # T is MetadataOnly here
    try:
        found: T = decoder(resource.type).decode(body)
    except msgspec.DecodeError as error:
        raise BadAnswer(f"the answer does not fit our type of {resource.kind}: {error}") from error
    except RecursionError as error:
        raise too_deep(resource) from error
    return found


def too_deep(resource: Resource[Any]) -> BadAnswer:
    return BadAnswer(f"the {resource.kind} is nested deeper than {nesting.DEEPEST} levels; write it flatter")


def without_deep(body: bytes) -> bytes:
    """Return the JSON of an event or a page without the values that are nested too deep."""
    return nesting.cut(body, _MARK, deepest=nesting.DEEPEST + _AROUND)


def metadata(body: msgspec.Raw) -> MetadataOnly:
    """Decode only the metadata, so that an object that does not fit its type can be named."""
    decode = decoder(MetadataOnly).decode
    try:
        found: MetadataOnly = _or_cut(decode, body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadAnswer(f"the answer is not an object with metadata: {error}") from error
    return found


def _or_cut(decode: Callable[[Any], Any], body: bytes | msgspec.Raw) -> Any:
    try:
        return decode(body)
    except RecursionError:
        return decode(without_deep(bytes(body)))


def decode_page(resource: Resource[T], body: bytes, on_bad: OnBad | None = None) -> Page[T]:
    """Decode a page of a list. With `on_bad`, report and leave out objects that do not fit their type."""
    try:
        page: Page[T] = decoder(Page[resource.type]).decode(body)  # type: ignore[name-defined]
    except (msgspec.DecodeError, RecursionError) as error:
        if on_bad is None:
            raise BadAnswer(
                f"the answer does not fit our type of a list of {resource.kind}: {error}"
            ) from error
        return _page_of_good(resource, body, on_bad)
    return page


def _page_of_good(resource: Resource[T], body: bytes, on_bad: OnBad) -> Page[T]:
    try:
        raw = _or_cut(decoder(RawPage).decode, body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadAnswer(f"the answer is not a list of {resource.kind}: {error}") from error
    items: list[T] = []
    for item in raw.items or ():
        try:
            if _MARK in bytes(item):
                raise too_deep(resource)
            items.append(decode(resource, item))
        except BadAnswer as error:
            on_bad(error, item)
    return Page(raw.metadata, items)
