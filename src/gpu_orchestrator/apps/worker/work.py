"""The attempts on this worker and the runners that work on them.

    Assign --> waiting --> a runner's queue --> first in it: Started --> outcome, unacked --Ack--> forgotten

Attempts with devices get a runner each, kept for the next attempt on the same set. Attempts without share a
few runners; while those are quick, several are handed over ahead, so that a short task costs no waiting.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker import frames
from gpu_orchestrator.apps.worker.attempt import Attempt, Key
from gpu_orchestrator.apps.worker.process import Runner

QUICK_S = 0.002
AHEAD = 32
STUCK_S = 0.05
START_S = 60.0
REMEMBERED = 4096
"""So many ended attempts are known, so that an `Assign` that was under way meanwhile is not run again."""

log = structlog.get_logger()
Devices = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hands:
    """What `Work` needs of the agent: a started runner, a look at a device's room, and the server's ear."""

    start: Callable[[Devices], Runner]
    room: Callable[[Attempt], str]
    say: Callable[[session.Message], None]


class Work:
    def __init__(self, hands: Hands, *, processes: int, idle_s: float) -> None:
        self._hands = hands
        self._processes = processes
        self._idle_s = idle_s
        self._attempts: dict[Key, Attempt] = {}
        self._waiting: defaultdict[Devices, deque[Attempt]] = defaultdict(deque)
        self._runners: defaultdict[Devices, list[Runner]] = defaultdict(list)
        self._unacked: dict[Key, session.Outcome] = {}
        self._settled: dict[Key, None] = {}
        self._refusal = ""
        self.moved = asyncio.Event()

    # --- what the server says ------------------------------------------------------------------------------

    def assign(self, assign: session.Assign) -> None:
        attempt = Attempt(assign)
        if any(attempt.key in known for known in (self._attempts, self._unacked, self._settled)):
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
            self._hands.say(self._unacked.setdefault(key, session.Cancelled(*key)))
        elif attempt in self._waiting[attempt.devices]:
            self._waiting[attempt.devices].remove(attempt)
            self._end(attempt, session.Cancelled(*key))
        elif not attempt.is_cancelled:
            attempt.is_cancelled, attempt.grace_s = True, asked.grace_s
            if attempt.started_at is not None:
                self._ask_to_stop(attempt)

    def ack(self, ack: session.Ack) -> None:
        if self._unacked.pop((ack.task, ack.attempt), None) is not None:
            self._settled[ack.task, ack.attempt] = None
            if len(self._settled) > REMEMBERED:
                del self._settled[next(iter(self._settled))]
        self.moved.set()

    # --- what the agent asks -------------------------------------------------------------------------------

    def attempts(self) -> tuple[session.Attempt, ...]:
        return tuple(session.Attempt(*key) for key in self._attempts)

    def unacked(self) -> tuple[session.Outcome, ...]:
        return tuple(self._unacked.values())

    def runners(self) -> list[Runner]:
        return [runner for runners in self._runners.values() for runner in runners]

    @property
    def is_over(self) -> bool:
        return not self._attempts and not self._unacked

    def refuse(self, reason: str) -> None:
        """From now on nothing is begun; what waits is given back."""
        self._refusal = reason
        for waiting in self._waiting.values():
            while waiting:
                attempt = waiting.popleft()
                self._end(attempt, session.Refused(*attempt.key, reason=reason))

    def prolong(self, until: float) -> None:
        for runner in self.runners():
            runner.prolong(until)

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
        for runner in self.runners():
            runner.queue.clear()
            runner.kill()

    def forget_outcomes(self) -> None:
        self._unacked.clear()

    def tidy(self, now: float) -> None:
        """Ends runners that have kept devices without work for a while, so that their memory is free."""
        for runner in self.runners():
            idle = runner.is_ready and not runner.queue and not runner.is_ending
            if idle and runner.devices and now - runner.idle_since > self._idle_s:
                runner.kill()

    # --- placing attempts on runners -----------------------------------------------------------------------

    def _dispatch(self, devices: Devices) -> None:
        waiting = self._waiting[devices]
        while waiting:
            if devices and not self._cleared(devices):
                return
            if devices and (reason := self._hands.room(waiting[0])):
                attempt = waiting.popleft()
                self._end(attempt, session.Refused(*attempt.key, reason=reason))
                continue
            runner = self._runner_for(devices)
            if runner is None:
                return
            self._hand_over(waiting.popleft(), runner)

    def _cleared(self, devices: Devices) -> bool:
        """Whether no runner keeps memory on these devices that is ending, or idle and of another set. If one
        does, it is ended, and we come back when it is gone."""
        near = [runner for runner in self.runners() if not set(devices).isdisjoint(runner.devices)]
        in_the_way = [r for r in near if r.is_ending or (not r.queue and r.devices != devices)]
        for runner in in_the_way:
            runner.kill()
        return not in_the_way

    def _runner_for(self, devices: Devices) -> Runner | None:
        runners = [runner for runner in self._runners[devices] if not runner.is_ending]
        for runner in runners:
            if not runner.queue:
                return runner
        if devices or len(runners) < self._processes:
            runner = self._hands.start(devices)
            self._runners[devices].append(runner)
            return runner
        ahead = min(
            (runner for runner in runners if runner.is_quick), key=lambda r: len(r.queue), default=None
        )
        return ahead if ahead and len(ahead.queue) < AHEAD else None

    def _hand_over(self, attempt: Attempt, runner: Runner) -> None:
        assign = attempt.assign
        runner.queue.append(attempt)
        runner.send(
            frames.Run(
                task=assign.task,
                attempt=assign.attempt,
                task_type=assign.task_type,
                parameters=assign.parameters,
                model_name=assign.model_name,
                memory_mib=assign.memory_mib,
                correlation_id=assign.correlation_id,
            )
        )
        if len(runner.queue) == 1:
            self._begin_first(runner)
        elif len(runner.queue) == 2:
            self._later(STUCK_S, self._unstick, runner, runner.queue[0])

    def _unstick(self, runner: Runner, first: Attempt) -> None:
        """What was handed over ahead behind a task that turned out long goes where there is room."""
        if len(runner.queue) > 1 and not runner.is_ending:
            if runner.queue[0] is first:
                runner.is_quick = False
                runner.send(frames.Withdraw())
            else:
                self._later(STUCK_S, self._unstick, runner, runner.queue[0])

    # --- an attempt runs -----------------------------------------------------------------------------------

    def _begin_first(self, runner: Runner) -> None:
        if not runner.queue:
            runner.idle_since = self._now()
            return
        attempt = runner.queue[0]
        if not runner.is_ready:
            attempt.timers.append(self._later(START_S, runner.kill))
            return
        attempt.stop_timers()
        attempt.started_at = self._now()
        self._hands.say(session.Started(*attempt.key))
        self._set_limits(attempt, runner)
        if attempt.is_cancelled:
            self._ask_to_stop(attempt)

    def _set_limits(self, attempt: Attempt, runner: Runner) -> None:
        if attempt.assign.soft_limit_s:
            frame = frames.SoftLimit(*attempt.key)
            attempt.timers.append(self._later(attempt.assign.soft_limit_s, runner.send, frame))
        if attempt.assign.timeout_s:
            attempt.timers.append(self._later(attempt.assign.timeout_s, self._time_out, attempt, runner))

    def _time_out(self, attempt: Attempt, runner: Runner) -> None:
        attempt.timed_out = True
        runner.kill()

    def _ask_to_stop(self, attempt: Attempt) -> None:
        """Cooperative, then SIGTERM, then SIGKILL."""
        runner = next(runner for runner in self._runners[attempt.devices] if attempt in runner.queue)
        runner.send(frames.Cancel(*attempt.key))
        attempt.timers.append(self._later(attempt.grace_s, runner.terminate))
        attempt.timers.append(self._later(attempt.grace_s * 2, runner.kill))

    # --- what runners say ----------------------------------------------------------------------------------

    def hear(self, runner: Runner, frame: frames.ToAgent) -> None:
        match frame:
            case frames.Line(task, attempt, line):
                self._told(self._attempts.get((task, attempt)), line)
            case frames.Ended(task, attempt, result):
                self._finish(runner, session.Done(task, attempt, result))
            case frames.Erred(task, attempt, error, message, retryable, spent):
                runner.is_ending = runner.is_ending or spent
                failure = session.TaskError(error, message, retryable)
                self._finish(runner, session.Failed(task, attempt, failure))
            case frames.Stopped(task, attempt, spent):
                runner.is_ending = runner.is_ending or spent
                self._finish(runner, session.Cancelled(task, attempt))
            case frames.Withdrawn(runs):
                self._take_back(runner, set(runs))
                self._dispatch(runner.devices)
            case frames.Ready():
                runner.is_ready = True
                self._begin_first(runner)

    def told(self, runner: Runner, line: str) -> None:
        self._told(runner.queue[0] if runner.queue else None, line)

    def gone(self, runner: Runner, evidence: str) -> None:
        self._runners[runner.devices].remove(runner)
        self.moved.set()
        if runner.queue:
            attempt = runner.queue.popleft()
            self._end(attempt, _end_without_word(attempt, evidence))
        self._take_back(runner, {attempt.key for attempt in runner.queue})
        for devices in list(self._waiting):
            self._dispatch(devices)

    def _told(self, attempt: Attempt | None, line: str) -> None:
        if attempt is not None and (progress := attempt.progress(line, self._now())) is not None:
            self._hands.say(progress)

    def _finish(self, runner: Runner, outcome: session.Outcome) -> None:
        if not runner.queue or runner.queue[0].key != (outcome.task, outcome.attempt):
            return
        attempt = runner.queue.popleft()
        runner.is_quick = self._now() - (attempt.started_at or 0.0) < QUICK_S
        self._end(attempt, outcome)
        if runner.is_ending:
            self._take_back(runner, {attempt.key for attempt in runner.queue})
        else:
            self._begin_first(runner)
        self._dispatch(runner.devices)

    def _take_back(self, runner: Runner, keys: set[Key]) -> None:
        """Attempts that had not begun wait again, before those that came later."""
        back = [attempt for attempt in runner.queue if attempt.key in keys]
        for attempt in reversed(back):
            runner.queue.remove(attempt)
            self._waiting[runner.devices].appendleft(attempt)

    def _end(self, attempt: Attempt, outcome: session.Outcome) -> None:
        attempt.stop_timers()
        del self._attempts[attempt.key]
        self._unacked[attempt.key] = outcome
        self._hands.say(outcome)
        if not isinstance(outcome, session.Done):
            log.info(
                "task ended without a result",
                task=attempt.assign.task,
                attempt=attempt.assign.attempt,
                correlation_id=attempt.assign.correlation_id,
                outcome=type(outcome).__name__,
                why=_why(outcome),
            )

    def _later(self, delay_s: float, call: Callable[..., None], *arguments: object) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, call, *arguments)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _end_without_word(attempt: Attempt, evidence: str) -> session.Outcome:
    if attempt.is_cancelled:
        return session.Cancelled(*attempt.key)
    if attempt.timed_out:
        message = f"the task ran past its limit of {attempt.assign.timeout_s:g} s and was killed"
        return session.Failed(*attempt.key, error=session.TaskError("Timeout", message))
    return session.RunnerDied(*attempt.key, evidence=evidence)


def _why(outcome: session.Outcome) -> str:
    match outcome:
        case session.Failed():
            return f"{outcome.error.type}: {outcome.error.message}"
        case session.RunnerDied():
            return outcome.evidence
        case session.Refused():
            return outcome.reason
        case _:
            return ""
