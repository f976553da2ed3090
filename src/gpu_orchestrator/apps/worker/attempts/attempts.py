"""The attempts on this worker, from `Assign` to the acknowledged outcome.

Assign --> waiting --> a runner's queue --> first in it: Started --> outcome, unacked --Ack--> forgotten
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker.attempts import deadlines, outcome
from gpu_orchestrator.apps.worker.attempts.attempt import Attempt, Devices, Key
from gpu_orchestrator.apps.worker.runners import frames
from gpu_orchestrator.apps.worker.runners.runner_handle import RunnerHandle
from gpu_orchestrator.apps.worker.runners.runner_pool import RunnerCallbacks, RunnerPool

QUICK_S = 0.002
STUCK_S = 0.05
REMEMBERED = 4096
"""So many ended attempts are known, so that an `Assign` that was under way meanwhile is not run again."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AgentCallbacks:
    """What `Work` asks of the agent: to stop all of this if the lease is over, why an attempt cannot begin on
    its devices now (or nothing), and to tell the server."""

    check_lease: Callable[[], None]
    room: Callable[[Attempt], str]
    say: Callable[[session.Message], None]


class Attempts:
    """`moved` is set whenever an outcome was acknowledged or a runner ended."""

    def __init__(self, pool: RunnerPool, agent: AgentCallbacks) -> None:
        self._pool, self._agent, self._say = pool, agent, agent.say
        self._runner_callbacks = RunnerCallbacks(self._hear, self._told, self._gone)
        self._attempts: dict[Key, Attempt] = {}
        self._waiting: defaultdict[Devices, deque[Attempt]] = defaultdict(deque)
        self._unacked: dict[Key, session.Outcome] = {}
        self._settled: dict[Key, None] = {}
        self._refusal = ""
        self.moved = asyncio.Event()

    # --- what the server says ------------------------------------------------------------------------------

    def assign(self, assign: session.Assign) -> None:
        self._agent.check_lease()
        attempt = Attempt(assign)
        if attempt.key in self._attempts or attempt.key in self._unacked or attempt.key in self._settled:
            return
        self._attempts[attempt.key] = attempt
        if self._refusal:
            self._end(attempt, session.Refused(*attempt.key, reason=self._refusal))
            return
        self._waiting[attempt.devices].append(attempt)
        self._dispatch(attempt.devices)

    def cancel(self, asked: session.Cancel) -> None:
        key = (asked.task, asked.attempt)
        attempt = self._attempts.get(key)
        if attempt is None:
            self._say(self._unacked.setdefault(key, session.Cancelled(*key)))
        elif attempt in self._waiting[attempt.devices]:
            self._waiting[attempt.devices].remove(attempt)
            self._end(attempt, session.Cancelled(*key))
        elif not attempt.is_cancelled:
            attempt.is_cancelled, attempt.grace_s = True, asked.grace_s
            if attempt.has_begun and (runner := self._pool.of(attempt)):
                deadlines.cancel(attempt, runner)

    def ack(self, ack: session.Ack) -> None:
        if self._unacked.pop((ack.task, ack.attempt), None) is not None:
            self._settled[ack.task, ack.attempt] = None
            if len(self._settled) > REMEMBERED:
                del self._settled[next(iter(self._settled))]
        self.moved.set()

    # --- what the agent asks -------------------------------------------------------------------------------

    def attempts(self) -> tuple[session.Attempt, ...]:
        return tuple(session.Attempt(*key) for key in self._attempts)

    def begun(self) -> tuple[session.Started, ...]:
        return tuple(session.Started(*key) for key, attempt in self._attempts.items() if attempt.has_begun)

    def unacked(self) -> tuple[session.Outcome, ...]:
        return tuple(self._unacked.values())

    @property
    def is_over(self) -> bool:
        return not self._attempts and not self._unacked

    def refuse(self, reason: str) -> None:
        """From now on nothing is begun."""
        self._refusal = reason
        self.give_back(reason)

    def give_back(self, reason: str) -> None:
        """What waits here can begin elsewhere."""
        for waiting in self._waiting.values():
            while waiting:
                attempt = waiting.popleft()
                self._end(attempt, session.Refused(*attempt.key, reason=reason))

    def give_up(self, error: session.TaskError) -> None:
        """Ends what still runs, as failed."""
        for attempt in list(self._attempts.values()):
            self._end(attempt, session.Failed(*attempt.key, error=error))
        self.stop()

    def stop(self) -> None:
        """Kills every runner and forgets every attempt: they are no longer ours. Outcomes are kept."""
        for attempt in self._attempts.values():
            attempt.stop_timers()
        self._attempts.clear()
        self._waiting.clear()
        self._pool.kill()

    def forget_outcomes(self) -> None:
        self._unacked.clear()

    # --- attempts go to runners ----------------------------------------------------------------------------

    def _dispatch(self, devices: Devices) -> None:
        waiting = self._waiting[devices]
        while waiting:
            if devices and not self._pool.clear(devices):
                return
            if devices and (reason := self._agent.room(waiting[0])):
                attempt = waiting.popleft()
                self._end(attempt, session.Refused(*attempt.key, reason=reason))
                continue
            runner = self._pool.free(devices, self._runner_callbacks)
            if runner is None:
                return
            self._hand_over(waiting.popleft(), runner)

    def _hand_over(self, attempt: Attempt, runner: RunnerHandle) -> None:
        runner.queue.append(attempt)
        runner.send(attempt.as_run())
        if len(runner.queue) == 1:
            self._begin_first(runner)
        elif len(runner.queue) == 2:
            self._unstick_later(runner)

    def _begin_first(self, runner: RunnerHandle) -> None:
        if not runner.queue:
            runner.idle_since = self._now()
        elif not runner.is_ready:
            deadlines.until_ready(runner.queue[0], runner)
        else:
            attempt = runner.queue[0]
            attempt.begun_at = self._now()
            self._say(session.Started(*attempt.key))
            log.debug("task begins", **attempt.names(), task_type=attempt.assign.task_type)
            deadlines.begin(attempt, runner)

    def _unstick_later(self, runner: RunnerHandle) -> None:
        asyncio.get_running_loop().call_later(STUCK_S, self._unstick, runner, runner.queue[0])

    def _unstick(self, runner: RunnerHandle, first: Attempt) -> None:
        """What was handed over ahead behind a task that turned out long goes where there is room."""
        if len(runner.queue) > 1 and not runner.is_ending:
            if runner.queue[0] is first:
                runner.is_quick = False
                runner.send(frames.Withdraw())
            else:
                self._unstick_later(runner)

    def _take_back(self, runner: RunnerHandle, keys: set[Key]) -> None:
        """Attempts that had not begun wait again, before those that came later."""
        back = [attempt for attempt in runner.queue if attempt.key in keys]
        for attempt in reversed(back):
            runner.queue.remove(attempt)
            self._waiting[runner.devices].appendleft(attempt)

    # --- what runners say ----------------------------------------------------------------------------------

    def _hear(self, runner: RunnerHandle, frame: frames.ToAgent) -> None:
        match frame:
            case frames.Ended() | frames.Erred() | frames.Stopped():
                runner.is_ending = runner.is_ending or frame.spent
                self._finish(runner, outcome.of(frame))
            case frames.Line(task, attempt, line):
                self._progress(self._attempts.get((task, attempt)), line)
            case frames.Withdrawn(runs):
                self._take_back(runner, set(runs))
                self._dispatch(runner.devices)
            case frames.Ready():
                runner.is_ready = True
                self._begin_first(runner)

    def _told(self, runner: RunnerHandle, line: str) -> None:
        self._progress(runner.queue[0] if runner.queue else None, line)

    def _gone(self, runner: RunnerHandle, evidence: str) -> None:
        """After its lease a runner was ended by its keeper: no fault of its task, and nothing is said."""
        self._agent.check_lease()
        self._pool.remove(runner)
        if runner.queue:
            attempt = runner.queue.popleft()
            self._end(attempt, outcome.without_a_word(attempt, evidence))
        self._take_back(runner, {attempt.key for attempt in runner.queue})
        for devices in list(self._waiting):
            self._dispatch(devices)
        self.moved.set()

    def _progress(self, attempt: Attempt | None, line: str) -> None:
        if attempt is not None and (progress := attempt.progress(line, self._now())) is not None:
            self._say(progress)

    def _finish(self, runner: RunnerHandle, ended: session.Outcome) -> None:
        if not runner.queue or runner.queue[0].key != (ended.task, ended.attempt):
            return
        attempt = runner.queue.popleft()
        runner.is_quick = self._now() - attempt.begun_at < QUICK_S
        self._end(attempt, ended)
        if runner.is_ending:
            self._take_back(runner, {attempt.key for attempt in runner.queue})
        else:
            self._begin_first(runner)
        self._dispatch(runner.devices)

    def _end(self, attempt: Attempt, ended: session.Outcome) -> None:
        attempt.stop_timers()
        del self._attempts[attempt.key]
        self._unacked[attempt.key] = ended
        self._say(ended)
        if why := outcome.in_words(ended):
            log.info("task ended without a result", **attempt.names(), why=why)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
