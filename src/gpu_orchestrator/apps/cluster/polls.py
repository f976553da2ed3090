"""Workers that poll: each has a mailbox, behind which the same session runs as behind a WebSocket."""

import asyncio
from dataclasses import dataclass

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.cluster import errors
from gpu_orchestrator.apps.cluster.keys import Key
from gpu_orchestrator.apps.cluster.sessions import Sessions
from gpu_orchestrator.apps.cluster.terms import SessionTerms
from gpu_orchestrator.apps.cluster.wires import Mailbox

FIRST_WORD_S = 10.0


@dataclass(frozen=True, slots=True)
class Poll:
    key: Key
    epoch: int
    mailbox: Mailbox
    serving: "asyncio.Task[None]"


class Polls:
    def __init__(self, sessions: Sessions, terms: SessionTerms) -> None:
        self._sessions, self._terms = sessions, terms
        self._open: dict[str, Poll] = {}

    async def register(self, hello: session.Hello, key: Key) -> session.Welcome:
        """Begins a session; raises `Conflict` with the reason if the worker is not wanted."""
        mailbox = Mailbox(self._terms.lease_s)
        serving = asyncio.get_running_loop().create_task(self._sessions.serve(mailbox, hello.name, key))
        frames = await mailbox.exchange(session.frame(hello), FIRST_WORD_S)
        said = [message for frame in frames for message in session.read_by_worker(frame)]
        welcome = next((each for each in said if isinstance(each, session.Welcome)), None)
        if welcome is None:
            serving.cancel()
            goodbye = next((each.reason for each in said if isinstance(each, session.Goodbye)), "no answer")
            raise errors.Conflict(goodbye)
        poll = self._open[hello.name] = Poll(key, welcome.epoch, mailbox, serving)
        serving.add_done_callback(lambda _: self._forget(hello.name, poll))
        return welcome

    async def heartbeat(self, name: str, key: Key, epoch: int, said: bytes, timeout_s: float) -> list[bytes]:
        """Frames for the worker. Raises `Conflict` for who must register anew."""
        poll = self._open.get(name)
        if poll is not None and poll.key.id != key.id:
            raise errors.Forbidden(f"worker {name} joined with another key; use that one")
        if poll is None or poll.epoch != epoch:
            raise errors.Conflict(f"worker {name} has no session of epoch {epoch} here; register anew")
        return await poll.mailbox.exchange(said, timeout_s)

    def _forget(self, name: str, poll: Poll) -> None:
        if self._open.get(name) is poll:
            del self._open[name]
