"""uvicorn as a part of a process of ours: it leaves signals alone and limits the time of a TLS handshake."""

import asyncio
import contextlib
import socket
from functools import partial
from typing import Any

import uvicorn

HANDSHAKE_S = 10.0


class Server(uvicorn.Server):
    """Set `should_exit` to end it. `tls.ServingContext` lets its certificate change."""

    servers: list[Any]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        config, loop = self.config, asyncio.get_running_loop()
        self.servers = []
        made: Any = config.http_protocol_class
        protocol = partial(made, config=config, server_state=self.server_state, app_state={})
        handshake_s = HANDSHAKE_S if config.ssl else None
        for each in sockets or ():
            opened = await loop.create_server(
                protocol,
                sock=each,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=handshake_s,
            )
            self.servers.append(opened)
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield
