"""The attempts on this worker, from `Assign` to the acknowledged outcome.

Assign --> waiting --> a runner's queue --> first in it: Started --> outcome, unacked --Ack--> forgotten
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec
import structlog

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker import frames
from gpu_orchestrator.apps.worker.attempt import Attempt, Devices, Key
from gpu_orchestrator.apps.worker.attempts import deadlines, outcome
from gpu_orchestrator.apps.worker.attempts.attempt_files import AttemptFiles, FileCallbacks
from gpu_orchestrator.apps.worker.attempts.attempt_output import AttemptOutput, LogCallbacks, StrayOutput
from gpu_orchestrator.apps.worker.attempts.attempt_values import AttemptValues, ValueCallbacks
from gpu_orchestrator.apps.worker.runners.model_cache import ModelCache
from gpu_orchestrator.apps.worker.runners.model_copy import ModelCopy
from gpu_orchestrator.apps.worker.runners.runner_handle import RunnerHandle
from gpu_orchestrator.apps.worker.runners.runner_pool import RunnerCallbacks, RunnerPool
from gpu_orchestrator.core.copies import Device

QUICK_S = 0.002
STUCK_S = 0.05
LOOK_S = 0.1
RAW = "raw"
"""The source of text that a runner printed past Python; its lines do not mix with those of `print`."""
REMEMBERED = 4096
"""Ended attempts to remember, so that an `Assign` that was in flight when one ended is not run again. If it
was not in flight, the store failed over and lost the outcome: refused, the task is placed again."""
ENDED = "it has ended here, and its outcome was acknowledged; the store may have lost it in a failover"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AgentCallbacks:
    """What `Attempts` calls on the agent: stop everything if the lease has expired, return whether idle
    models leave room for an attempt (else they are being evicted), and why it cannot begin on its devices now
    (or ""), send a message to the manager, and see to what attempts print and send."""

    check_lease: Callable[[], None]
    has_room: Callable[[Attempt], bool]
    no_room_reason: Callable[[Attempt], str]
    send: Callable[[session.Message], None]
    logs: LogCallbacks
    values: ValueCallbacks
    files: FileCallbacks


class Attempts:
    """All attempts of this worker. Sets `changed` when an outcome is acknowledged or a runner ends."""

    def __init__(self, pool: RunnerPool, models: ModelCache, agent: AgentCallbacks) -> None:
        self._pool, self._models, self._agent, self._send = pool, models, agent, agent.send
        self._runner_callbacks = RunnerCallbacks(self._receive, self._printed_raw, self._runner_ended)
        self._attempts: dict[Key, Attempt] = {}
        self._waiting: defaultdict[Devices, deque[Attempt]] = defaultdict(deque)
        self._unacked: dict[Key, session.Outcome] = {}
        self._acknowledged: dict[Key, None] = {}
        self._output, self._stray = AttemptOutput(agent.logs), StrayOutput()
        self._values = AttemptValues(agent.values)
        self._files = AttemptFiles(agent.files)
        self._refusal = ""
        self._looking: set[Devices] = set()
        self.changed = asyncio.Event()

    # --- messages of the manager ---------------------------------------------------------------------------

    def assign(self, assign: session.Assign, *, loads_model: bool = False) -> None:
        """Take an assignment. `loads_model`: its task type loads a model, by default one of its own name."""
        self._agent.check_lease()
        model = assign.model or session.Model(assign.model_name or assign.task_type)
        attempt = Attempt(assign, model if loads_model else None)
        if attempt.key in self._attempts or attempt.key in self._unacked:
            return
        if attempt.key in self._acknowledged:
            self._send(self._unacked.setdefault(attempt.key, session.Refused(*attempt.key, reason=ENDED)))
            return
        self._attempts[attempt.key] = attempt
        if self._refusal:
            self._end(attempt, session.Refused(*attempt.key, reason=self._refusal))
            return
        if assign.gang is not None:  # it needs a runner of its own, and what waits before it may wait for it
            self._waiting[attempt.devices].appendleft(attempt)
        else:
            self._waiting[attempt.devices].append(attempt)
        self._dispatch(attempt.devices)

    def cancel(self, message: session.Cancel) -> None:
        key = (message.task, message.attempt)
        attempt = self._attempts.get(key)
        if attempt is None:
            self._send(self._unacked.setdefault(key, session.Cancelled(*key)))
        elif attempt in self._waiting[attempt.devices]:
            self._waiting[attempt.devices].remove(attempt)
            self._end(attempt, session.Cancelled(*key))
        elif not attempt.is_cancelled:
            attempt.is_cancelled, attempt.grace_s = True, message.grace_s
            if attempt.has_begun and (runner := self._pool.of(attempt)):
                deadlines.cancel(attempt, runner)

    def ack(self, ack: session.Ack) -> None:
        self._output.acknowledged((ack.task, ack.attempt))
        if self._unacked.pop((ack.task, ack.attempt), None) is not None:
            self._acknowledged[ack.task, ack.attempt] = None
            if len(self._acknowledged) > REMEMBERED:
                del self._acknowledged[next(iter(self._acknowledged))]
        self.changed.set()

    def taken(self, message: session.Taken) -> None:
        self._values.taken(message)

    # --- called by the agent -------------------------------------------------------------------------------

    def attempts(self) -> tuple[session.Attempt, ...]:
        return tuple(session.Attempt(*key) for key in self._attempts)

    def joined(self) -> None:
        """Send again what the manager may have missed: what began, what it printed, and how it ended."""
        for key, attempt in self._attempts.items():
            if attempt.has_begun:
                self._send(session.Started(*key))
        self._output.joined(self._attempts)
        self._values.joined()
        for ended in self._unacked.values():
            self._send(ended)

    def has(self, key: Key) -> bool:
        return key in self._attempts or key in self._unacked

    def outcome(self, key: Key) -> session.Outcome | None:
        """Return the outcome of an attempt that the manager has not acknowledged yet."""
        return self._unacked.get(key)

    def unacked(self) -> tuple[session.Outcome, ...]:
        return tuple(self._unacked.values())

    @property
    def is_over(self) -> bool:
        return not self._attempts and not self._unacked

    def refuse_all(self, reason: str) -> None:
        """Refuse what waits, and every attempt assigned from now on."""
        self._refusal = reason
        self.refuse_waiting(reason)

    def refuse_waiting(self, reason: str) -> None:
        """Refuse the attempts that wait, so that the manager can assign them elsewhere."""
        for waiting in self._waiting.values():
            while waiting:
                attempt = waiting.popleft()
                self._end(attempt, session.Refused(*attempt.key, reason=reason))

    def fail_all(self, error: session.TaskError) -> None:
        """Report every attempt as failed with this error, and kill the runners."""
        for attempt in list(self._attempts.values()):
            self._end(attempt, session.Failed(*attempt.key, error=error))
        self.stop()

    def stop(self) -> None:
        """Kill every runner and forget every attempt: they no longer belong to this worker. Keep outcomes."""
        for attempt in self._attempts.values():
            attempt.stop_timers()
        self._attempts.clear()
        self._waiting.clear()
        self._output.forget_running()
        self._values.forget()
        self._files.forget()
        self._pool.kill()

    def close(self) -> None:
        self._files.close()

    def forget_outcomes(self) -> None:
        self._unacked.clear()
        self._output.forget_ended()

    def preload(
        self, wanted: session.Preload, missing_mib: Callable[[Attempt], Mapping[Device, int]]
    ) -> None:
        """Load a model for no attempt yet, if nothing must end for it."""
        assign = session.Assign("", 0, wanted.task_type, devices=wanted.devices, memory_mib=wanted.memory_mib)
        attempt = Attempt(assign, wanted.model)
        if self._waiting[attempt.devices] or not self._pool.is_clear(attempt):
            return
        if not self._models.has_room_beside(attempt, missing_mib):
            return
        if (runner := self._pool.free(attempt, self._runner_callbacks)) is not None:
            self._models.load_for(runner, attempt)
            runner.send(attempt.as_load(self._models.rules.path_of(wanted.model)))
            load_s = self._models.rules.load_timeout_s
            asyncio.get_running_loop().call_later(load_s, self._models.give_up, runner)

    def unload(self, model: str, *, force: bool) -> None:
        """End the runners that hold a model. With `force` also those in use: their tasks are retried."""
        self._models.unload(model)
        for runner in self._pool.all() if force else ():
            if runner.copy is not None and runner.copy.model == model and runner.queue:
                attempt = runner.queue.popleft()
                why = f"an operator unloaded model {model!r} while the task used it"
                self._end(
                    attempt, session.Failed(*attempt.key, error=session.TaskError("ModelUnloaded", why, True))
                )
                self._take_back(runner, {each.key for each in runner.queue})
                runner.end(drains=False)

    # --- dispatch to runners -------------------------------------------------------------------------------

    def _dispatch(self, devices: Devices) -> None:
        """Hand over what may begin, in order. What waits for the copy of its model holds nothing up."""
        waiting, behind = self._waiting[devices], list[Attempt]()
        while waiting:
            attempt = waiting.popleft()
            if self._pool.is_copy_busy(attempt):
                behind.append(attempt)
            elif not self._begins(attempt):
                waiting.appendleft(attempt)
                break
        waiting.extendleft(reversed(behind))

    def _begins(self, attempt: Attempt) -> bool:
        """Give an attempt to a runner, or refuse it; return False if it must wait."""
        if (attempt.devices or attempt.model_key) and not self._pool.clear(attempt):
            return False
        if not self._agent.has_room(attempt):
            self._try_again(attempt.devices)
            return False
        if attempt.devices and (reason := self._agent.no_room_reason(attempt)):
            self._end(attempt, session.Refused(*attempt.key, reason=reason))
            return True
        runner = self._pool.free(attempt, self._runner_callbacks)
        if runner is None:
            return False
        self._hand_over(attempt, runner)
        return True

    def _try_again(self, devices: Devices) -> None:
        """Look again in a moment: a runner is being ended for its memory, or the driver is slow to notice."""
        if devices not in self._looking:
            self._looking.add(devices)
            asyncio.get_running_loop().call_later(LOOK_S, self._look, devices)

    def _look(self, devices: Devices) -> None:
        self._looking.discard(devices)
        self._dispatch(devices)

    def _hand_over(self, attempt: Attempt, runner: RunnerHandle) -> None:
        runner.queue.append(attempt)
        if attempt.model is not None and self._models.load_for(runner, attempt):
            runner.send(attempt.as_load(self._models.rules.path_of(attempt.model)))
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
        elif runner.copy is None:
            self._begin(runner.queue[0])
            deadlines.begin(runner.queue[0], runner)
        else:
            self._begin_with_model(runner.queue[0], runner, runner.copy)

    def _begin(self, attempt: Attempt) -> None:
        attempt.begun_at = self._now()
        self._send(session.Started(*attempt.key))
        devices = [str(each) for each in attempt.assign.devices]
        log.debug("task begins", **attempt.log_fields(), task_type=attempt.assign.task_type, devices=devices)

    def _begin_with_model(self, attempt: Attempt, runner: RunnerHandle, copy: ModelCopy) -> None:
        """Begin a task of a model; if that is not loaded yet, its load belongs to this task."""
        self._models.task_begins(copy, attempt)
        self._begin(attempt)
        if copy.is_loaded:
            deadlines.begin(attempt, runner)
        else:
            self._output.printed(attempt, f"loading model {copy.model}\n")
            deadlines.until_loaded(attempt, runner, self._models.rules.load_timeout_s)

    def _loaded(self, runner: RunnerHandle, frame: frames.Loaded) -> None:
        load_s = frame.load_s
        self._models.loaded(runner, load_s, frame.ends_within_s)
        if runner.queue and runner.copy is not None:
            attempt = runner.queue[0]
            self._output.printed(attempt, f"loaded model {runner.copy.model} in {load_s:.1f} s\n")
            deadlines.begin(attempt, runner)

    def _unstick_later(self, runner: RunnerHandle) -> None:
        asyncio.get_running_loop().call_later(STUCK_S, self._unstick, runner, runner.queue[0])

    def _unstick(self, runner: RunnerHandle, first: Attempt) -> None:
        """Withdraw the attempts queued behind a task that turned out to be long, to run them elsewhere."""
        if len(runner.queue) > 1 and not runner.is_ending:
            if runner.queue[0] is first:
                runner.is_quick = False
                runner.send(frames.Withdraw())
            else:
                self._unstick_later(runner)

    def _take_back(self, runner: RunnerHandle, keys: set[Key]) -> None:
        """Put attempts that have not begun back at the head of the waiting queue."""
        back = [attempt for attempt in runner.queue if attempt.key in keys]
        for attempt in reversed(back):
            runner.queue.remove(attempt)
            self._waiting[runner.devices].appendleft(attempt)

    # --- callbacks of runners ------------------------------------------------------------------------------

    def _receive(self, runner: RunnerHandle, frame: frames.ToAgent) -> None:
        match frame:
            case frames.Ended() | frames.Erred() | frames.Stopped():
                runner.is_ending = runner.is_ending or frame.spent
                if not frame.task and runner.queue:  # a load for nobody failed, and now somebody waits for it
                    task, number = runner.queue[0].key
                    frame = msgspec.structs.replace(frame, task=task, attempt=number)
                attempt = self._attempts.get((frame.task, frame.attempt))
                has_elsewhere = attempt is None or attempt.assign.has_elsewhere
                self._finish(runner, outcome.of(frame, has_elsewhere=has_elsewhere))
            case frames.Printed(task, attempt, text):
                self._printed(runner, self._attempts.get((task, attempt)), text)
            case frames.Sent(task, number):
                if (task, number) in self._attempts:
                    self._values.sent(frame, partial(self._tell_taken, runner, (task, number)))
            case frames.Wants(task, number) | frames.Leaves(task, number):
                if (task, number) in self._attempts:
                    self._files.asked(frame, runner.send)
            case frames.Withdrawn(runs):
                self._take_back(runner, set(runs))
                runner.claim()
                self._dispatch(runner.devices)
            case frames.Loaded():
                self._loaded(runner, frame)
            case frames.Health():
                self._models.told(runner, frame)
            case frames.Ready():
                runner.is_ready = True
                self._begin_first(runner)

    def _tell_taken(self, runner: RunnerHandle, key: Key, count: int) -> None:
        runner.send(frames.Taken(*key, count))

    def _printed(self, runner: RunnerHandle, attempt: Attempt | None, text: str) -> None:
        if attempt is not None:
            self._output.printed(attempt, text)
        else:
            self._stray.printed(runner.pid, text)

    def _printed_raw(self, runner: RunnerHandle, attempt: Attempt | None, text: str) -> None:
        if attempt is not None:
            self._output.printed(attempt, text, RAW)
        else:
            self._stray.printed(runner.pid, text)

    def _runner_ended(self, runner: RunnerHandle, evidence: str) -> None:
        """Report how the first attempt of a runner ended, and run the rest elsewhere.

        If the lease has expired, the keeper ended the runner and the task is not at fault: `check_lease` has
        then dropped all attempts, and there is nothing to report."""
        self._agent.check_lease()
        self._pool.remove(runner)
        self._models.runner_ended(runner)
        if runner.queue:
            attempt = runner.queue.popleft()
            died = outcome.runner_died(attempt, evidence)
            self._output.printed(attempt, runner.unclaimed, RAW)
            self._output.last_words(attempt, outcome.last_words(died))
            self._end(attempt, died)
        self._take_back(runner, {attempt.key for attempt in runner.queue})
        for devices in list(self._waiting):
            self._dispatch(devices)
        self.changed.set()

    def _finish(self, runner: RunnerHandle, ended: session.Outcome) -> None:
        if not runner.queue or runner.queue[0].key != (ended.task, ended.attempt):
            return
        attempt = runner.queue.popleft()
        # What a runner prints past Python can be attributed only while it has one attempt.
        runner.is_quick = self._now() - attempt.begun_at < QUICK_S and not runner.prints_raw
        self._models.task_ended(runner)
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
        self._values.ended(attempt.key)
        self._files.ended(attempt.key)
        self._output.ended(attempt)
        self._send(ended)
        if why := outcome.failure_reason(ended):
            log.info("task ended without a result", **attempt.log_fields(), why=why)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
