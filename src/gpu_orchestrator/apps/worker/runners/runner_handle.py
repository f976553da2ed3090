"""A runner as the agent sees it: starts it under its keeper, exchanges frames with it, and watches it end.

A byte in a pipe, the bell, announces each frame that the runner must read while a task runs. Another pipe has
the output of C code and of child processes. It does not say which task wrote what, so the agent decides:

  the runner has one attempt     the text is that attempt's
  it has more of them queued,    the agent cannot tell, unless the runner dies: then it is the evidence
  or had at the last outcome
  it has none, or something of   the text belongs to no task
  an ended task still runs
"""

import asyncio
import os
import signal
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from gpu_orchestrator.adapters import keeper
from gpu_orchestrator.adapters.process_rights import User
from gpu_orchestrator.apps.worker import environment, frames
from gpu_orchestrator.apps.worker.handlers import find
from gpu_orchestrator.apps.worker.runners import keeper as runner_keeper
from gpu_orchestrator.apps.worker.runners.raw_output import RawOutput

if TYPE_CHECKING:
    from gpu_orchestrator.apps.worker.attempt import Attempt
    from gpu_orchestrator.apps.worker.runners.model_copy import ModelCopy

LAST_LINES = 40
LONGEST_EVIDENCE = 8192
MOST_UNCLAIMED = 16 << 10
REAP_S = 0.5
MARGIN_S = 0.05
"""The kernel rounds the age of a process to ticks, and the event loop reads its clock once per pass."""
MARGIN_END_S = 2.0
"""How much longer than it says a runner may take to end its server."""
BOUNDARIES = (frames.Ready, frames.Ended, frames.Erred, frames.Stopped)
RING = b"!"


@dataclass(frozen=True, slots=True)
class RunnerPlan:
    """What a runner is started with, and the callbacks for its frames, its output (with the attempt that it
    belongs to, if any) and its end. It runs tasks of one `owner`; empty if owners share runners. It has the
    rights of `user`, else those of the agent. With `limit_mib`, MPS holds it to that much memory of each
    device. With `model` it runs tasks of that model alone."""

    devices: tuple[str, ...]
    environment: Mapping[str, str]
    options: frames.Options
    on_frame: Callable[["RunnerHandle", frames.ToAgent], None]
    on_output: Callable[["RunnerHandle", "Attempt | None", str], None]
    on_end: Callable[["RunnerHandle", str], None]
    owner: str = ""
    user: User | None = None
    limit_mib: int = 0
    model: str = ""


class RunnerHandle:
    """`queue` holds the attempts sent to the runner; it works on the first.

    starting --Ready--> ready --spent, retired or killed--> ending --> gone (`on_end` is called once)
    """

    def __init__(self, plan: RunnerPlan) -> None:
        self.devices, self.owner, self.limit_mib = plan.devices, plan.owner, plan.limit_mib
        self.model = plan.model
        self.copy: ModelCopy | None = None
        """What it has loaded, or loads; None for a runner without a model."""
        self.queue: deque[Attempt] = deque()
        self.is_ready = False
        self.is_ending = False
        self.is_quick = False
        self.idle_since = 0.0
        self.prints_raw = False
        self.unclaimed = ""
        """Output since the last outcome of which the agent cannot tell the attempt."""
        self.pid = 0
        self._runner_pid = 0
        self._leaves_something = self._may_leave = self._has_orphan = False
        self._looked_at: Attempt | None = None
        self._recent = ""
        self._plan = plan
        self._lifeline, far_lifeline = _pipe()
        self._bell, far_bell = _pipe()
        self._far_ends = (far_lifeline, far_bell)
        self._channel: asyncio.WriteTransport | None = None
        self._unsent: list[bytes] = []
        self._output = RawOutput(self._printed)
        self._is_gone = False
        self.send(frames.Setup(plan.options, find.installed()))

    async def start(self, until: float, variables: Awaitable[Mapping[str, str]] | None = None) -> None:
        """Start keeper and runner, with these variables besides those of the plan. Frames sent before this is
        done are queued. For `until` see `prolong`."""
        try:
            more = await variables if variables is not None else {}
            near, far = socket.socketpair()
            with far:
                try:
                    self.pid = await self._spawn(far, until, more)
                except OSError:
                    near.close()
                    raise
        finally:
            for end in self._far_ends:
                os.close(end)
            self._output.close_far()
        self._output.begin()
        await self._connect(near)

    async def _spawn(self, far: socket.socket, until: float, more: Mapping[str, str]) -> int:
        self.prolong(until)
        lifeline, bell = self._far_ends
        user = self._plan.user
        variables = environment.without_secrets() | (user.environment() if user else {})
        process, _ = await asyncio.get_running_loop().subprocess_exec(
            lambda: _Process(self),
            *keeper.command(runner_keeper.__name__, *map(str, (lifeline, far.fileno(), bell))),
            *((user.encode(),) if user else ()),
            stdin=None,
            stdout=self._output.far,
            stderr=asyncio.subprocess.STDOUT,
            env={**variables, **self._plan.environment, **more},
            pass_fds=(lifeline, far.fileno(), bell),
            start_new_session=True,
        )
        return process.get_pid() or 0

    async def _connect(self, near: socket.socket) -> None:
        """Open the agent's end of the socket pair.

        Not by `create_unix_connection(sock=near)`: if the runner is dead by then, uvloop closes the file
        descriptor without the socket object's knowledge, and the socket object closes it again later, when
        the number may belong to another file."""
        await asyncio.get_running_loop().connect_accepted_socket(lambda: _Channel(self), near)

    def send(self, frame: frames.Frame) -> None:
        """Queue a frame. Frames sent in one pass of the event loop are written together.

        A runner that has not said that it is ready gets none: a busy agent could find its `Ready` together
        with all that its first task printed, and could not tell that text from what came before."""
        self._unsent.append(frames.encode(frame))
        if self._runner_pid and len(self._unsent) == 1:
            asyncio.get_running_loop().call_soon(self._flush)
        if not isinstance(frame, frames.Run | frames.Load):
            self._write(self._bell, RING)

    def _flush(self) -> None:
        if self._channel is not None and not self._channel.is_closing():  # else `closed` follows soon
            self._channel.write(b"".join(self._unsent))
        self._unsent.clear()

    def prolong(self, until: float) -> None:
        """Let the keeper end the runner at this time (by `clock.elapsed_s()`) unless it gets a later one."""
        self._write(self._lifeline, keeper.order(keeper.LEASE, until))

    def terminate(self) -> None:
        self._write(self._lifeline, keeper.order(keeper.TERM))

    def kill(self) -> None:
        """Kill the runner and all it started. `on_end` is called when none of them is left."""
        self.is_ending = True
        self._write(self._lifeline, keeper.order(keeper.KILL))

    def end(self, *, drains: bool = True) -> None:
        """End the runner; if a server backs its model, politely, as far as that has time for it."""
        if not self.ends_within_s:
            self.kill()
        elif not self.is_ending:
            self.is_ending = True
            self.send(frames.Close(drains))
            asyncio.get_running_loop().call_later(self.ends_within_s, self.kill)

    @property
    def ends_within_s(self) -> float:
        """Return how long its end may take; 0 if no server backs its model."""
        return self.copy.ends_within_s + MARGIN_END_S if self.copy and self.copy.ends_within_s else 0.0

    def pids(self) -> set[int]:
        """Return the ids of all processes of this runner."""
        return {self.pid, *keeper.descendants(self.pid)} if self.pid and not self._is_gone else set()

    def _write(self, pipe: int, data: bytes) -> None:
        if self._is_gone:
            return
        with suppress(OSError):
            os.write(pipe, data)

    def opened(self, channel: asyncio.WriteTransport) -> None:
        self._channel = channel

    def receive(self, received: list[frames.ToAgent]) -> None:
        """Handle frames. What the ended tasks of these frames printed is in the pipe by now: read it first,
        before other text can follow."""
        if any(isinstance(frame, BOUNDARIES) for frame in received):
            self._output.drain()
        for frame in received:
            if not self._is_gone:
                if isinstance(frame, BOUNDARIES):
                    self._next_task(frame)
                self._plan.on_frame(self, frame)

    def _next_task(self, frame: "frames.Ready | frames.Outcome") -> None:
        """Forget what was printed so far: what comes next belongs to another task."""
        if isinstance(frame, frames.Ready):
            self._runner_pid = frame.pid
            self._flush()
        else:
            self._leaves_something, self._may_leave = frame.left_behind, len(self.queue) > 1
        if self._recent:
            if self.unclaimed:
                self._plan.on_output(self, None, self.unclaimed)
            self._recent = self.unclaimed = ""
            self._output.forget_partial()

    def claim(self) -> None:
        """Give the first attempt the unclaimed output, because those behind it turned out not to have
        begun."""
        if self.unclaimed and self.queue and not self._may_leave:
            text, self.unclaimed = self.unclaimed, ""
            self._plan.on_output(self, self.queue[0], text)

    def _printed(self, text: str) -> None:
        self.prints_raw = self.is_ready
        is_first = self.is_ready and len(self.queue) == 1 and not self._may_leave
        if self._leaves_something or (self.is_ready and not self.queue) or (is_first and self._has_orphans()):
            self._plan.on_output(self, None, text)
            return
        self._recent = (self._recent + text)[-LONGEST_EVIDENCE:]
        if is_first:
            self._plan.on_output(self, self.queue[0], text)
        else:
            self.unclaimed = (self.unclaimed + text)[-MOST_UNCLAIMED:]

    def _has_orphans(self) -> bool:
        """Return whether processes are left that an earlier task started, and that lost their parent. Look
        once for each attempt: later no older process can appear."""
        attempt = self.queue[0]
        if self._looked_at is not attempt:
            self._looked_at = attempt
            age_s = asyncio.get_running_loop().time() - attempt.begun_at - MARGIN_S
            self._has_orphan = keeper.has_old_orphan(self.pid, self._runner_pid, age_s)
        return self._has_orphan

    def closed(self) -> None:
        """Wait for the keeper after the runner closed its socket; on a busy device it may need a while."""
        self.is_ending = True
        asyncio.get_running_loop().call_later(REAP_S, self.ended, "its processes are still ending")

    def ended(self, how: str) -> None:
        if not self._is_gone:
            self._is_gone = self.is_ending = True
            os.close(self._lifeline)
            os.close(self._bell)
            if self._channel is not None:
                self._channel.close()
            self._output.close()
            lines = self._recent.replace("\r", "\n").split("\n")
            last = [line for line in lines if line.strip()][-LAST_LINES:]
            evidence = "; ".join([f"runner {self.pid}: {how}", *last])
            self._plan.on_end(self, evidence[:LONGEST_EVIDENCE])


class _Channel(asyncio.Protocol):
    def __init__(self, runner: RunnerHandle) -> None:
        self._runner = runner
        self._reader = frames.read_by_agent()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._runner.opened(cast(asyncio.WriteTransport, transport))

    def data_received(self, data: bytes) -> None:
        if received := self._reader.feed(data):
            self._runner.receive(received)

    def connection_lost(self, exc: Exception | None) -> None:
        self._runner.closed()


class _Process(asyncio.SubprocessProtocol):
    """The exit code of the keeper."""

    def __init__(self, runner: RunnerHandle) -> None:
        self._runner = runner
        self._transport: asyncio.SubprocessTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end: the process has exited, and with it all that could write to its output."""
        code = self._transport.get_returncode() if self._transport else None
        self._runner.ended(describe_exit(code))
        if self._transport:
            self._transport.close()


def _pipe() -> tuple[int, int]:
    """Return the agent's end of a new pipe, where a write never blocks, and the other end."""
    far, near = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(near, False)
    return near, far


def describe_exit(code: int | None) -> str:
    if code is None:
        return "ended"
    if code < 0:
        with suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
