"""The base of all wire types: the base struct, object metadata and the description of a resource.

Types hold only the fields we use; unknown fields are skipped while decoding. Python names are snake_case,
wire names camelCase. Values are frozen: change one with `msgspec.structs.replace`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec.structs import force_setattr


class Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Base of everything on the wire. gc=False: such values never form cycles."""


class OwnerReference(Wire, frozen=True, gc=False):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Wire, frozen=True, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    owner_references: list[OwnerReference] = []
    creation_timestamp: str = ""
    deletion_timestamp: str = ""


def keep_annotations(meta: ObjectMeta, longest: Mapping[str, int]) -> None:
    """Keep only these annotations, each cut to its number of characters. Call it from the `__post_init__` of
    a kind that users write and we store: the text of all its objects would fill the memory."""
    if found := meta.annotations:
        kept = {name: found[name][:most] for name, most in longest.items() if name in found}
        force_setattr(meta, "annotations", kept)


class Object(Protocol):
    """Anything with metadata: what the client, the watch and the indices need of an object."""

    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=Object, covariant=True)


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A kind of object on the API server, and the type we decode it into."""

    type: type[T]
    kind: str
    plural: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        tail = "".join(f"/{part}" for part in (self.plural, name, subresource) if part)
        return root + scope + tail


def key(obj: Object) -> str:
    """Return `namespace/name`, or `name` for objects without a namespace: the object's key within its
    resource."""
    meta = obj.metadata
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


Json = dict[str, Any]
