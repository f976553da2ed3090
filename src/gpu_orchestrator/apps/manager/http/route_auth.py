"""What each route needs, said beside the route and nowhere else: `described(..., needs="read")` for HTTP,
`dependencies=needs("worker")` for WebSockets.

The door that this puts before a route lets in or raises; the gate reads what it wrote down. A route without a
door is a mistake that `openings` finds when the application is built.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import FastAPI, params
from fastapi.routing import iter_route_contexts
from starlette import types as asgi
from starlette.requests import HTTPConnection

from gpu_orchestrator.apps.manager.access.keys import Scope
from gpu_orchestrator.apps.manager.manager import Manager

Needs = Scope | Literal["nothing", "metrics"]
"""`metrics` is nothing, unless METRICS_AUTH closes it to all who may not `read`."""


CHANGES: frozenset[Needs] = frozenset({"submit", "admin", "worker"})
"""Who only reads changes nothing."""


class UnguardedRoute(Exception):
    """A route that does not say what it needs."""


@dataclass(frozen=True, slots=True)
class RouteGuard:
    """`audited` may be said no of what happens all the time."""

    needs: Needs
    audited: bool = True

    @property
    def is_watched(self) -> bool:
        """Whether what comes through and is no GET belongs into the audit log."""
        return self.audited and self.needs in CHANGES

    async def __call__(self, connection: HTTPConnection) -> None:
        self.enter(connection.scope, manager_of(connection))

    def enter(self, connection: asgi.Scope, manager: Manager) -> None:
        """Raises what the client is told, else leaves the key in the connection's state."""
        state = connection["state"]
        state["route_guard"] = self
        scope = self._needed(manager)
        if scope is not None:
            key = state["key"] = manager.keys.find(header(connection, b"authorization"))
            manager.rate_limiter.take(key, connection.get("method", "WS"), path_of(connection))
            key.demand(scope)

    def _needed(self, manager: Manager) -> Scope | None:
        if self.needs == "nothing":
            return None
        if self.needs == "metrics":
            return "read" if manager.settings.metrics_auth else None
        return self.needs


def manager_of(connection: HTTPConnection) -> Manager:
    """The manager that answers a request or a WebSocket."""
    manager: Manager = connection.app.state.manager
    return manager


def header(connection: asgi.Scope, name: bytes) -> str:
    """The first header of this name, in lower case; empty if there is none."""
    for each, value in connection["headers"]:
        if each == name:
            return str(value, "latin-1")
    return ""


def path_of(connection: asgi.Scope) -> str:
    """The path of the route, with the names of its parameters in place of their values."""
    return str(getattr(connection.get("route"), "path", connection["path"]))


def needs(what: Needs, *, audited: bool = True) -> list[Any]:
    """The `dependencies` of a route."""
    return [params.Depends(RouteGuard(what, audited))]


def guard_of(dependencies: Sequence[params.Depends]) -> RouteGuard | None:
    return next((each.dependency for each in dependencies if isinstance(each.dependency, RouteGuard)), None)


@dataclass(frozen=True, slots=True)
class GuardedRoute:
    """One way in. `method` is WS for a WebSocket."""

    method: str
    path: str
    route_guard: RouteGuard


def guarded_routes(app: FastAPI) -> Iterator[GuardedRoute]:
    """Every way into the application; raises `Undeclared` for one without a door."""
    for route in iter_route_contexts(app.routes):
        route_guard = guard_of(getattr(route, "dependencies", None) or ())
        if route_guard is None:
            raise UnguardedRoute(f"{route.path} does not say what it needs; give described(..., needs=...)")
        for method in sorted(getattr(route, "methods", None) or ["WS"]):
            yield GuardedRoute(method, str(route.path), route_guard)
