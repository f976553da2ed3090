"""Turn our wire types into structural OpenAPI v3: what the API server accepts, prunes and defaults.

A field's bounds and description come from its `Meta`, its default from the type; a class's `RULES` become CEL
rules. A default that means the same as absence (nothing, zero, false, empty) is not written into objects.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import NODEFAULT, Meta, inspect

Schema = dict[str, Any]
INT32 = 2**31 - 1
INT64 = 2**63 - 1
PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL rule. `field` is the path of the field to blame, relative to the object that has the rule."""

    rule: str
    message: str
    field: str = ""

    def schema(self) -> Schema:
        blamed = {"fieldPath": self.field, "reason": "FieldValueInvalid"} if self.field else {}
        return {"rule": self.rule, "message": self.message, **blamed}


def unchanged(path: str) -> str:
    """Return CEL for "the field at this path did not change". Optionals are not used, because the server
    cannot bound their cost.

    Compared both ways, because CEL overlooks a field that only the right side has beside unknown ones.
    """
    new, old = f"self.{path}", f"oldSelf.{path}"
    return f"has({new}) == has({old}) && (!has({new}) || ({new} == {old} && {old} == {new}))"


def number(description: str, at_least: int, at_most: int) -> Meta:
    return Meta(ge=at_least, le=at_most, description=description)


def text(description: str, at_least: int = 0, at_most: int | None = None, pattern: str | None = None) -> Meta:
    return Meta(min_length=at_least or None, max_length=at_most, pattern=pattern, description=description)


def about(description: str, *, at_least: int | None = None, at_most: int | None = None, **extra: Any) -> Meta:
    """Describe a field of any other type. `list_type="set"` becomes `x-kubernetes-list-type: set`, and so
    on."""
    keys = {f"x-kubernetes-{name.replace('_', '-')}": value for name, value in extra.items()}
    return Meta(min_length=at_least, max_length=at_most, description=description, extra_json_schema=keys)


def moment(description: str) -> Meta:
    return Meta(description=description, extra_json_schema={"format": "date-time"})


def of(cls: type[msgspec.Struct]) -> Schema:
    """Return the schema of one of our classes."""
    return _schema(inspect.type_info(cls))


def _schema(kind: inspect.Type) -> Schema:
    match kind:
        case inspect.Metadata():
            return {**_schema(kind.type), **(kind.extra_json_schema or {})}
        case inspect.UnionType():
            return _schema(_present(kind))
        case inspect.StructType():
            return _object(kind)
        case inspect.ListType():
            return _bounded("array", kind, "Items") | {
                "x-kubernetes-list-type": "atomic",
                "items": _schema(kind.item_type),
            }
        case inspect.DictType():
            return _map(kind)
        case _:
            return _scalar(kind)


def _scalar(kind: inspect.Type) -> Schema:
    match kind:
        case inspect.LiteralType():
            return {"type": "string", "enum": list(kind.values)}
        case inspect.StrType():
            pattern = {"pattern": kind.pattern} if kind.pattern else {}
            return _bounded("string", kind, "Length") | pattern
        case inspect.IntType():
            return _integer(kind)
        case inspect.BoolType():
            return {"type": "boolean"}
        case _:
            raise TypeError(f"no schema is known for {kind!r}; add it to {__name__}")


def _integer(kind: inspect.IntType) -> Schema:
    """2^63-1 would not survive the server's floats, and the format implies it anyway."""
    wide = kind.le is None or kind.le > INT32
    highest = None if kind.le == INT64 else kind.le
    bounds = {"minimum": kind.ge, "maximum": highest}
    return {"type": "integer", "format": "int64" if wide else "int32", **_said(bounds)}


def _map(kind: inspect.DictType) -> Schema:
    if isinstance(kind.value_type, inspect.AnyType):
        return {"type": "object", PRESERVE: True}
    return _bounded("object", kind, "Properties") | {"additionalProperties": _schema(kind.value_type)}


def _bounded(type_name: str, kind: inspect.StrType | inspect.ListType | inspect.DictType, of: str) -> Schema:
    return {"type": type_name, **_said({f"min{of}": kind.min_length, f"max{of}": kind.max_length})}


def _object(kind: inspect.StructType) -> Schema:
    rules = [rule.schema() for rule in getattr(kind.cls, "RULES", ())]
    required = [field.encode_name for field in kind.fields if field.required]
    return _said(
        {
            "type": "object",
            "description": " ".join((kind.cls.__doc__ or "").split()),
            "required": required,
            "properties": {field.encode_name: _property(field) for field in kind.fields},
            "x-kubernetes-validations": rules,
        }
    )


def _property(field: inspect.Field) -> Schema:
    default = _default(field)
    return _schema(field.type) | ({} if _means_absence(default) else {"default": _plain(default)})


def _default(field: inspect.Field) -> Any:
    if field.default is not NODEFAULT:
        return field.default
    if field.default_factory is not NODEFAULT:
        return field.default_factory()
    return None


def _means_absence(value: Any) -> bool:
    """An object of ours means absence if every one of its fields does."""
    return not (_plain(value) if isinstance(value, msgspec.Struct) else value)


def _plain(default: Any) -> Any:
    """Return an object's default in full: the server applies the rules before it fills in the fields' own
    defaults."""
    if not isinstance(default, msgspec.Struct):
        return default
    fields = {field.encode_name: getattr(default, field.name) for field in msgspec.structs.fields(default)}
    return {name: _plain(value) for name, value in fields.items() if not _means_absence(value)}


def _present(union: inspect.UnionType) -> inspect.Type:
    (present,) = (kind for kind in union.types if not isinstance(kind, inspect.NoneType))
    return present


def _said(values: Schema) -> Schema:
    return {key: value for key, value in values.items() if value or value == 0}


def described(schema: Schema, path: str = "") -> Iterator[tuple[str, str]]:
    """Return every property of a schema by its path, with its description; the whole schema has the path
    ``."""
    yield path, schema.get("description", "")
    for name, inner in schema.get("properties", {}).items():
        yield from described(inner, f"{path}.{name}")
    if "properties" in schema.get("items", {}):
        for name, inner in schema["items"]["properties"].items():
            yield from described(inner, f"{path}[].{name}")
