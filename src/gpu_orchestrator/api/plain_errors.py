"""Say plainly why JSON does not fit its type: which field, what was sent, what may be sent.

msgspec names the place and the rule; what was sent is read again from the text, and the known fields and
values come from the type. The manager calls it for bodies of requests, a runner for parameters of tasks.
"""

import re
from collections.abc import Iterator
from typing import Any, get_type_hints

import msgspec
from msgspec import inspect

MOST_SHOWN = 60
_AT = re.compile(r"(?P<said>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
_PART = re.compile(r"\.([^.\[\]]+)|\[(\.\.\.|\d+)\]")
_BOUND = re.compile(r"Expected `(\w+)`(?: of length)? (<=|>=|<|>|==) (\S+)")
_BOUNDS = {
    "<=": "at most {}",
    ">=": "at least {}",
    "<": "less than {}",
    ">": "more than {}",
    "==": "exactly {}",
}
_LENGTHS = {"str": "characters", "array": "items", "object": "items"}
_KINDS = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_KIND_OF: dict[type[inspect.Type], str] = {
    inspect.StrType: "str",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.BoolType: "bool",
    inspect.ListType: "array",
    inspect.VarTupleType: "array",
    inspect.DictType: "object",
    inspect.StructType: "object",
}
ANY_ENTRY = "..."
_WithFields = inspect.StructType | inspect.DataclassType | inspect.TypedDictType


def plain(error: msgspec.ValidationError, body: bytes | str, kind: Any, *, whole: str = "the body") -> str:
    """Return the error as a sentence. `whole` is what to call the JSON itself."""
    found = _AT.fullmatch(str(error))
    assert found is not None  # noqa: S101 - matches any text
    steps = [name or index for name, index in _PART.findall(found["path"] or "")]
    place = _place(body, kind)
    for step in steps:
        place = place.down(step)
    return _sentence(found["said"], place, place.path or whole, is_key=bool(found["key"]))


def _place(body: bytes | str, kind: Any) -> "_Place":
    """Return the whole body. The first error may come before one that makes the rest unreadable: then the
    value is not known."""
    try:
        return _Place(msgspec.json.decode(body), inspect.type_info(kind), hint=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Place(None, inspect.type_info(kind), known=False)


class _Place:
    """A place in a body: the value there (`known` if it was found), its type, and the way to it. `hint` is
    the type as it is written in the code, or None if that was not looked for."""

    def __init__(
        self, value: Any, kind: inspect.Type, path: str = "", *, known: bool = True, hint: Any = None
    ) -> None:
        self.value, self.kind, self.path, self.known, self.hint = value, kind, path, known, hint

    def down(self, step: str) -> "_Place":
        """Return the place one step below."""
        match self.value:
            case dict() if step == ANY_ENTRY:
                wrong = _wrong_entry(self.value, self.hint)
                return _Place(
                    self.value.get(wrong),
                    _item(self.kind),
                    f"{self.path}[{ANY_ENTRY if wrong is None else _short(wrong)}]",
                    known=wrong is not None,
                )
            case dict() if step in self.value:
                path = f"{self.path}.{step}" if self.path else step
                return _Place(self.value[step], _field(self.kind, step), path, hint=_hint(self.kind, step))
            case list() if step.isdigit() and int(step) < len(self.value):
                return _Place(self.value[int(step)], _item(self.kind), f"{self.path}[{step}]")
            case _:
                path = (
                    f"{self.path}[{step}]" if step.isdigit() or step == ANY_ENTRY else f"{self.path}.{step}"
                )
                return _Place(None, _field(self.kind, step), path.removeprefix("."), known=False)


def _wrong_entry(value: dict[str, Any], hint: Any) -> str | None:
    """Return the name of the first entry that does not fit: msgspec says only that there is one."""
    return next((name for name, each in value.items() if _is_wrong(name, each, hint)), None)


def _is_wrong(name: str, value: Any, hint: Any) -> bool:
    try:
        msgspec.json.decode(msgspec.json.encode({name: value}), type=Any if hint is None else hint)
    except msgspec.ValidationError as error:
        return f"[{ANY_ENTRY}]" in str(error)
    return False


def _sentence(said: str, place: _Place, where: str, *, is_key: bool) -> str:
    if missing := re.fullmatch(r"Object missing required field `(.+)`", said):
        name = f"{place.path}.{missing[1]}" if place.path else missing[1]
        return f"{name} is missing{_hoped_for(_field(place.kind, missing[1]))}"
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", said, re.DOTALL):
        inside = f" in {place.path}" if place.path else ""
        return f"unknown field {_short(unknown[1])}{inside}; known: {', '.join(_fields(place.kind))}"
    if is_key:
        return f"a name in {where} does not fit: {_wanted(said, place)}"
    shown = f"{where} is {_shown(place.value)}" if place.known else where
    return f"{shown}; {_wanted(said, place)}"


def _wanted(said: str, place: _Place) -> str:
    """Return what may be sent instead."""
    if choices := _choices(place.kind):
        return f"known: {', '.join(choices)}"
    if bound := _BOUND.match(said):
        kind, sign, number = bound.groups()
        unit = _LENGTHS[kind] if " of length " in said and kind in _LENGTHS else ""
        unit = unit.removesuffix("s") if number == "1" else unit
        return f"give {_BOUNDS[sign].format(number.removesuffix('.0'))} {unit}".rstrip()
    if pattern := re.fullmatch(r"Expected `str` matching regex '?(.*?)'?", said, re.DOTALL):
        return _description(place.kind) or f"it must match {pattern[1]}"
    if kinds := re.match(r"Expected `([^`]+)`", said):
        return "give " + " or ".join(_KINDS.get(each, each) for each in kinds[1].split(" | "))
    return said


def _hoped_for(kind: inspect.Type) -> str:
    """Return what to give where nothing was given; empty if the type is not a plain one."""
    if choices := _choices(kind):
        return f"; known: {', '.join(choices)}"
    names = [_KINDS[_KIND_OF[type(each)]] for each in _branches(kind) if type(each) in _KIND_OF]
    return f"; give {' or '.join(names)}" if names else ""


def _shown(value: Any) -> str:
    """Return a value as it was sent; of lists and objects only what they are, because they may be large."""
    match value:
        case None | True | False:
            return {None: "null", True: "true", False: "false"}[value]
        case list() | dict():
            return ("[…]" if isinstance(value, list) else "{…}") if value else str(value)
        case _:
            return _short(repr(value))


def _short(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def _branches(kind: inspect.Type) -> Iterator[inspect.Type]:
    match kind:
        case inspect.UnionType(types=types):
            for each in types:
                yield from _branches(each)
        case inspect.Metadata(type=inner):
            yield from _branches(inner)
        case _:
            yield kind


def _description(kind: inspect.Type) -> str:
    """Return the words in which a type says what it takes; empty if it does not."""
    match kind:
        case inspect.Metadata(extra_json_schema=more):
            return str((more or {}).get("description", ""))
        case inspect.UnionType(types=types):
            return next(filter(None, map(_description, types)), "")
        case _:
            return ""


def _structs(kind: inspect.Type) -> list[_WithFields]:
    return [each for each in _branches(kind) if isinstance(each, _WithFields)]


def _fields(kind: inspect.Type) -> list[str]:
    return [each.encode_name for struct in _structs(kind) for each in struct.fields]


def _field(kind: inspect.Type, name: str) -> inspect.Type:
    for struct in _structs(kind):
        for each in struct.fields:
            if each.encode_name == name:
                return each.type
    return inspect.AnyType()


def _hint(kind: inspect.Type, name: str) -> Any:
    """Return the type of a field as it is written in the code; None if it is not found."""
    for struct in _structs(kind):
        for each in struct.fields:
            if each.encode_name == name:
                return get_type_hints(struct.cls, include_extras=True).get(each.name)
    return None


def _item(kind: inspect.Type) -> inspect.Type:
    for each in _branches(kind):
        match each:
            case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
                return item
            case inspect.DictType(value_type=item):
                return item
    return inspect.AnyType()


def _choices(kind: inspect.Type) -> list[str]:
    found: list[str] = []
    for each in _branches(kind):
        match each:
            case inspect.LiteralType(values=values):
                found += map(str, values)
            case inspect.EnumType(cls=names):
                found += (str(member.value) for member in names)
    return found
