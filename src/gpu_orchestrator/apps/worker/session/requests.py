"""Requests of a worker beside its connection, to the server that it is joined to: for files of its tasks."""

from collections.abc import Mapping
from typing import Any

import aiohttp

from gpu_orchestrator.apps.worker.session.servers import Servers
from gpu_orchestrator.apps.worker.settings import Settings

NO_HEADERS: Mapping[str, str] = {}
LIMITS = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=300.0)
"""A file may take long to arrive; a server that stays silent is given up after `sock_read`."""


class Requests:
    """`http` is the agent's, while it runs."""

    def __init__(self, settings: Settings, servers: Servers) -> None:
        self._settings, self._servers = settings, servers
        self.http: aiohttp.ClientSession | None = None

    def __call__(self, method: str, path: str, headers: Mapping[str, str] = NO_HEADERS, **more: Any) -> Any:
        """Send a request about this worker's own tasks; `path` is below the worker's own."""
        if self.http is None:
            raise OSError("the worker is not connected")
        url = self._settings.own_url(self._servers.current)
        token = {"Authorization": f"Bearer {self._settings.token}"}
        return self.http.request(
            method, f"{url}/{path}", headers={**headers, **token}, timeout=LIMITS, **more
        )
