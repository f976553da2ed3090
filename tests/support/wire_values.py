"""Hypothesis strategies made from the API types themselves: any value that a type accepts.

They come from msgspec's description of a type, so a new field is tested without a change here.
"""

import datetime
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st
from msgspec import inspect, structs

from gpu_orchestrator.api.devices import DeviceWish
from gpu_orchestrator.api.gpuclaim import GpuClaimSpec
from gpu_orchestrator.api.gpuqueue import GpuQueueSpec, Requirement
from gpu_orchestrator.api.gpuworkload import GPUWorkloadSpec
from gpu_orchestrator.api.podtemplate import POD_FIELDS, PodTemplate

T = TypeVar("T", bound=msgspec.Struct)
Strategy = st.SearchStrategy[Any]

# Long texts and lists find no more than short ones; other tests check the bounds one by one.
LONGEST = 12


def of(cls: type[T]) -> st.SearchStrategy[T]:
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    parts = {field.name: _field(field) for field in info.fields}
    return st.fixed_dictionaries(parts).map(lambda values: _sensible(cls(**values)))


def _field(field: inspect.Field) -> Strategy:
    present = _value(field.type, field.type)
    if field.required:
        return present
    default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return st.just(default) | present


def _value(kind: inspect.Type, outer: inspect.Type) -> Strategy:
    match kind:
        case inspect.Metadata():
            return _value(kind.type, kind)
        case inspect.UnionType():
            return st.one_of(*(_value(each, each) for each in kind.types))
        case inspect.StructType():
            return template() if kind.cls is PodTemplate else of(kind.cls)
        case inspect.ListType():
            return _list(kind, _extra(outer))
        case inspect.DictType():
            return st.dictionaries(texts(1, LONGEST), _value(kind.value_type, kind.value_type), max_size=3)
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.IntType():
            return st.integers(kind.ge, kind.le)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.StrType():
            return _text(kind, _extra(outer))
        case _:
            raise TypeError(f"no strategy for {kind!r}")


def _extra(kind: inspect.Type) -> dict[str, Any]:
    return (kind.extra_json_schema or {}) if isinstance(kind, inspect.Metadata) else {}


def _list(kind: inspect.ListType, extra: dict[str, Any]) -> Strategy:
    items = _value(kind.item_type, kind.item_type)
    shortest, longest = kind.min_length or 0, min(kind.max_length or 4, 4)
    if keys := extra.get("x-kubernetes-list-map-keys"):
        return st.lists(items, max_size=longest, unique_by=lambda item: getattr(item, keys[0]))
    is_set = extra.get("x-kubernetes-list-type") == "set"
    return st.lists(items, min_size=shortest, max_size=longest, unique=is_set)


def _text(kind: inspect.StrType, extra: dict[str, Any]) -> Strategy:
    if extra.get("format") == "date-time":
        return st.datetimes(timezones=st.just(datetime.UTC)).map(datetime.datetime.isoformat)
    if kind.pattern:
        whole = st.from_regex(kind.pattern, fullmatch=True)
        return whole.filter(lambda text: (kind.min_length or 0) <= len(text) <= (kind.max_length or 253))
    return texts(kind.min_length or 0, min(kind.max_length or LONGEST, LONGEST))


def texts(shortest: int, longest: int) -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=shortest, max_size=longest)


def template() -> st.SearchStrategy[PodTemplate]:
    leaf = st.booleans() | st.integers(-(2**31), 2**31) | texts(0, LONGEST)
    json = st.recursive(leaf, lambda inner: st.lists(inner, max_size=2) | _objects(inner), max_leaves=4)
    spec = st.dictionaries(st.sampled_from(POD_FIELDS.split()) | texts(1, LONGEST), json, max_size=3)
    return st.builds(PodTemplate, spec=spec)


def _objects(values: Strategy) -> Strategy:
    return st.dictionaries(texts(1, LONGEST), values, max_size=2)


def _sensible(value: T) -> T:
    """Adjust fields that depend on each other, as the API server's rules require."""
    if isinstance(value, DeviceWish):
        value = structs.replace(value, **_held(value))
    if isinstance(value, GpuClaimSpec) and not value.gang_ref:
        value = structs.replace(value, gang_size=None)
    if isinstance(value, GPUWorkloadSpec) and value.claim and value.claim.devices.count:
        devices = structs.replace(value.claim.devices, count=value.gpu_count)
        value = structs.replace(value, claim=structs.replace(value.claim, devices=devices))
    if isinstance(value, Requirement):
        needed = (value.values or ["a"]) if value.operator in ("In", "NotIn") else []
        value = structs.replace(value, values=needed)
    if isinstance(value, GpuQueueSpec):
        most = value.limit
        guaranteed = {name: min(each, most.get(name, each)) for name, each in value.guaranteed.items()}
        value = structs.replace(value, guaranteed=guaranteed)
    return value


def _held(devices: DeviceWish) -> dict[str, Any]:
    fixed: dict[str, Any] = {}
    if devices.exclusivity != "Shared":
        fixed |= {"memory_mib": None, "share": None}
    elif devices.memory_mib is None and devices.share is None:
        fixed |= {"share": 500}
    if devices.exclusivity != "MIG":
        fixed |= {"mig_profile": ""}
    elif not devices.mig_profile:
        fixed |= {"mig_profile": "1g.10gb"}
    if devices.policy == "preferIds" and not devices.prefer_ids:
        fixed |= {"prefer_ids": [0]}
    return fixed
