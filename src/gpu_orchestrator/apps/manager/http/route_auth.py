"""Declare and check what each route needs. Each route declares it in its decorator and nowhere else:
`described(..., needs="read")` for HTTP, `dependencies=needs("worker")` for WebSockets.

The `RouteGuard` of a route checks the key and stores itself and the key in the connection's state, where the
gate reads them. `guarded_routes` raises for a route without a guard when the application is built.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import parse_qsl

from fastapi import FastAPI, params
from fastapi.routing import iter_route_contexts
from starlette import types as asgi
from starlette.requests import HTTPConnection

from gpu_orchestrator.apps.manager.access.connections import PEER
from gpu_orchestrator.apps.manager.access.keys import Scope
from gpu_orchestrator.apps.manager.errors import Unavailable, Unprocessable
from gpu_orchestrator.apps.manager.manager import Manager

Needs = Scope | Literal["nothing", "metrics"]
"""`metrics` needs nothing, unless METRICS_AUTH is set: then it needs `read`."""

CHANGES: frozenset[Needs] = frozenset({"submit", "admin", "worker"})
"""What a route may need that changes something; a route that needs `read` changes nothing."""

ACKNOWLEDGED: frozenset[Needs] = frozenset({"submit", "admin"})
"""Routes whose changes must be durable before they are acknowledged. Those of workers are not among them: a
lease must not end because a replica is away."""

SHORT_QUERY = 40
HEADERS = "headers_by_name"


class UnguardedRoute(Exception):
    """A route does not declare what it needs."""


@dataclass(frozen=True, slots=True)
class RouteGuard:
    """Checks the key of each request to one route. Set `audited=False` for frequent calls like heartbeats."""

    needs: Needs
    audited: bool = True

    @property
    def is_audited(self) -> bool:
        """Return True if requests other than GET belong in the audit log."""
        return self.audited and self.needs in CHANGES

    async def __call__(self, connection: HTTPConnection) -> None:
        self.enter(connection.scope, manager_of(connection))
        if connection.scope["query_string"]:
            check_query(connection.scope["query_string"], query_names(connection.scope["route"]))

    def enter(self, connection: asgi.Scope, manager: Manager) -> None:
        """Check the key and store it in the connection's state; raise the `ApiError` for the client."""
        state = connection["state"]
        state["route_guard"] = self
        scope = self._needed(manager)
        if scope is not None:
            key = state["key"] = manager.keys.find(header(connection, b"authorization"))
            recognise(connection)
            manager.rate_limiter.take(key, connection.get("method", "WS"), path_of(connection))
            key.demand(scope)
            if manager.store.database.trouble and scope in ACKNOWLEDGED and connection.get("method") != "GET":
                raise Unavailable(
                    f"changes cannot be made durable now: {manager.store.database.trouble}; retry"
                )

    def _needed(self, manager: Manager) -> Scope | None:
        if self.needs == "nothing":
            return None
        if self.needs == "metrics":
            return "read" if manager.settings.metrics_auth else None
        return self.needs


def recognise(connection: asgi.Scope) -> None:
    """Note that this connection has shown a valid key, so that it does not give way to strangers."""
    if (peer := connection["state"].get(PEER)) is not None:
        peer.recognise()


def query_names(route: Any) -> frozenset[str]:
    """Return the query parameters that a route takes: those of its function, and those it parses itself."""
    parsed = (getattr(route, "openapi_extra", None) or {}).get("parameters", ())
    return frozenset(
        [*(each.alias for each in route.dependant.query_params), *(each["name"] for each in parsed)]
    )


def check_query(query: bytes, known: frozenset[str]) -> None:
    """Raise `Unprocessable` for a query parameter that the route does not take. Ignored, it would look as if
    it had been heeded: a misspelt filter returns everything."""
    unknown = _unknown_short(query, known) if len(query) <= SHORT_QUERY else _unknown(query, known)
    if unknown is not None:
        takes = f"known: {', '.join(sorted(known))}" if known else "this route takes none"
        raise Unprocessable(f"unknown query parameter {unknown!r}; {takes}")


def _unknown(query: bytes, known: frozenset[str]) -> str | None:
    given = (name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    return next((name for name in given if name not in known), None)


@lru_cache(maxsize=256)
def _unknown_short(query: bytes, known: frozenset[str]) -> str | None:
    """Cached, because most clients send the same query again."""
    return _unknown(query, known)


def manager_of(connection: HTTPConnection) -> Manager:
    """Return the manager that serves this request or WebSocket."""
    manager: Manager = connection.app.state.manager
    return manager


def header(connection: asgi.Scope, name: bytes) -> str:
    """Return the first header of this name, which must be in lower case; empty if there is none."""
    known: dict[bytes, bytes] | None = connection.get(HEADERS)
    if known is None:
        known = connection[HEADERS] = dict(reversed(connection["headers"]))
    value = known.get(name)
    return value.decode("latin-1") if value else ""


def path_of(connection: asgi.Scope) -> str:
    """Return the path of the route, with the names of its parameters in place of their values."""
    return str(getattr(connection.get("route"), "path", connection["path"]))


def needs(what: Needs, *, audited: bool = True) -> list[Any]:
    """Return the `dependencies` for a route's decorator."""
    return [params.Depends(RouteGuard(what, audited))]


def guard_of(dependencies: Sequence[params.Depends]) -> RouteGuard | None:
    return next((each.dependency for each in dependencies if isinstance(each.dependency, RouteGuard)), None)


@dataclass(frozen=True, slots=True)
class GuardedRoute:
    """One method and path of the application. `method` is WS for a WebSocket; `query` are the parameters that
    it takes."""

    method: str
    path: str
    route_guard: RouteGuard
    query: frozenset[str] = frozenset()


def guarded_routes(app: FastAPI) -> Iterator[GuardedRoute]:
    """Yield every route of the application; raise `UnguardedRoute` for one without a guard."""
    for route in iter_route_contexts(app.routes):
        route_guard = guard_of(getattr(route, "dependencies", None) or ())
        if route_guard is None:
            raise UnguardedRoute(
                f"{route.path} does not declare what it needs; pass needs= to described(...)"
            )
        for method in sorted(getattr(route, "methods", None) or ["WS"]):
            yield GuardedRoute(method, str(route.path), route_guard, query_names(route))
