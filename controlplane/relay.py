"""Pass bytes on between two connections: all that stands in for a Service or a load balancer."""

import select
import socket


def join(client: socket.socket, server: socket.socket) -> None:
    """Pass on what comes from either end until one of them closes."""
    other = {client: server, server: client}
    while True:
        for each in select.select(other, (), ())[0]:
            data = each.recv(65_536)
            if not data:
                return
            other[each].sendall(data)
