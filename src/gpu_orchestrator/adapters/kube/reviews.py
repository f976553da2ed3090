"""Read-only questions to the API server: whose token is it, who may do what, what does the server serve."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.errors import BadAnswer, NotFound, NotServed, Operation
from gpu_orchestrator.adapters.kube.transport import codec
from gpu_orchestrator.adapters.kube.transport.base import Request


class UserInfo(msgspec.Struct, frozen=True, rename="camel"):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()


class _TokenStatus(msgspec.Struct, frozen=True, rename="camel"):
    authenticated: bool = False
    user: UserInfo = UserInfo()
    audiences: tuple[str, ...] = ()
    error: str = ""


class _AccessStatus(msgspec.Struct, frozen=True, rename="camel"):
    allowed: bool = False
    reason: str = ""


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenStatus = _TokenStatus()


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus = _AccessStatus()


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    git_version: str = ""


class _Served(msgspec.Struct, frozen=True):
    name: str


class _ServedList(msgspec.Struct, frozen=True):
    resources: tuple[_Served, ...] = ()


@dataclass(frozen=True, slots=True)
class Access:
    """An action that a user may or may not do, in the words of RBAC."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        return str(Operation(self.verb, self.resource, self.group, self.name, self.namespace))

    def _attributes(self) -> dict[str, str]:
        resource, _, subresource = self.resource.partition("/")
        return {
            "verb": self.verb,
            "group": self.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": self.namespace,
            "name": self.name,
        }


async def review_token(client: Client, token: str, audiences: Sequence[str] = ()) -> UserInfo | None:
    """Return the user of this token, or None if the server does not accept it."""
    spec = {"token": token, "audiences": list(audiences)} if audiences else {"token": token}
    body = await _review(client, "authentication.k8s.io", "TokenReview", spec)
    status = codec.decoder(_TokenReview).decode(body).status
    found: UserInfo = status.user
    return found if status.authenticated else None


async def may_i(client: Client, access: Access) -> bool:
    """Return True if we may do this."""
    spec = {"resourceAttributes": access._attributes()}
    return await _allowed(client, "SelfSubjectAccessReview", spec)


async def may(client: Client, user: UserInfo, access: Access) -> bool:
    """Return True if this user may do this."""
    spec = {"user": user.username, "groups": list(user.groups), "resourceAttributes": access._attributes()}
    return await _allowed(client, "SubjectAccessReview", spec)


async def version(client: Client) -> str:
    """Return the server's version, e.g. v1.36.3."""
    body = await client.send(Operation("get", "version"), Request("GET", "/version"), idempotent=True)
    try:
        found: str = codec.decoder(_Version).decode(body).git_version
    except msgspec.DecodeError as error:
        raise BadAnswer("/version did not answer as an API server does; check the address") from error
    return found


async def served(client: Client, group: str, api_version: str) -> frozenset[str]:
    """Return the plural names that the server serves in this group version; empty if it does not know it."""
    operation = Operation("get", f"apis/{group}/{api_version}")
    try:
        body = await client.send(operation, Request("GET", f"/apis/{group}/{api_version}"), idempotent=True)
    except (NotFound, NotServed):
        return frozenset()
    return frozenset(found.name for found in codec.decoder(_ServedList).decode(body).resources)


async def _allowed(client: Client, kind: str, spec: object) -> bool:
    body = await _review(client, "authorization.k8s.io", kind, spec)
    allowed: bool = codec.decoder(_AccessReview).decode(body).status.allowed
    return allowed


async def _review(client: Client, group: str, kind: str, spec: object) -> bytes:
    plural = f"{kind.lower()}s"
    body = codec.encode_plain({"apiVersion": f"{group}/v1", "kind": kind, "spec": spec})
    operation = Operation("create", plural, group)
    return await client.send(operation, Request("POST", f"/apis/{group}/v1/{plural}", body), idempotent=True)
