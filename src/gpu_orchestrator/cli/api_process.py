"""One API process of `server --processes N`. `process_group.py` starts it, and tells it on stdin what to do:
the order has secrets, which must not show in the arguments or the environment of a process."""

import contextlib
import socket
import sys
from dataclasses import replace
from pathlib import Path

import msgspec

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.apps.manager.access.keys import Key, Keys
from gpu_orchestrator.apps.manager.siblings import Place

UP = b"up\n"
"""What the process writes to stdout once it serves requests."""


class Order(msgspec.Struct, frozen=True):
    """What a process needs to know. `listening` is the number of its socket."""

    settings: Settings
    keys: tuple[Key, ...]
    place: Place
    insecure: bool = False
    listening: int = 0


def encoded(order: Order, number: int, listening: int) -> bytes:
    """Return the order for the process with this number."""
    place = replace(order.place, number=number)
    return msgspec.msgpack.encode(msgspec.structs.replace(order, place=place, listening=listening))


async def serve(order: Order) -> int:
    from gpu_orchestrator.apps.manager import server, siblings
    from gpu_orchestrator.cli import host

    async def work(ending: host.Ending) -> None:
        siblings.share_counters(order.place)
        own = _own_file(order.settings, order.place.number)
        with contextlib.ExitStack() as stack:
            stack.callback(host.configure_logs(own, Path(own.data_dir), only_file=False))
            listening = stack.enter_context(socket.socket(fileno=order.listening))
            listening.setblocking(False)
            async with server.running(
                own, Keys(order.keys), insecure=order.insecure, listening=listening, place=order.place
            ):
                host.settle_down()
                ending.is_up()
                sys.stdout.buffer.write(UP)
                sys.stdout.buffer.flush()
                await ending.asked.wait()

    return await host.reported(work)


def _own_file(chosen: Settings, number: int) -> Settings:
    """Give the process a log file of its own: two processes cannot rotate one file."""
    if not chosen.log_file:
        return chosen
    path = Path(chosen.log_file)
    return replace(chosen, log_file=str(path.with_name(f"{path.stem}-{number}{path.suffix}")))


if __name__ == "__main__":
    import uvloop

    sys.exit(uvloop.run(serve(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Order))))
