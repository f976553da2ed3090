"""End a running attempt from outside: soft limit, hard limit, cancellation. Called by `attempts`."""

import asyncio
from collections.abc import Callable

from gpu_orchestrator.apps.worker import frames
from gpu_orchestrator.apps.worker.attempt import Attempt
from gpu_orchestrator.apps.worker.runners.runner_handle import RunnerHandle

START_S = 60.0


def until_ready(attempt: Attempt, runner: RunnerHandle) -> None:
    """Kill the runner, and its attempt with it, if it does not become ready within START_S."""
    _later(attempt, START_S, runner.kill)


def until_loaded(attempt: Attempt, runner: RunnerHandle, load_s: float) -> None:
    """Kill the runner if it does not load the model of its attempt within this time. The limits of the task
    count from then on."""
    attempt.stop_timers()
    _later(attempt, load_s, _give_up_load, attempt, runner, load_s)
    if attempt.is_cancelled:
        cancel(attempt, runner)


def begin(attempt: Attempt, runner: RunnerHandle) -> None:
    attempt.stop_timers()
    soft_s, hard_s = attempt.assign.soft_limit_s, attempt.assign.timeout_s
    if soft_s and (not hard_s or soft_s <= hard_s):
        _later(attempt, soft_s, _soften, attempt, runner)  # it sets the other timer: most tasks end before
    elif hard_s:
        _later(attempt, hard_s, _time_out, attempt, runner)
    if attempt.is_cancelled:
        cancel(attempt, runner)


def cancel(attempt: Attempt, runner: RunnerHandle) -> None:
    """Ask the handler to stop; after the grace period send SIGTERM, after another one SIGKILL."""
    runner.send(frames.Cancel(*attempt.key))
    _later(attempt, attempt.grace_s, runner.terminate)
    _later(attempt, attempt.grace_s * 2, runner.kill)


def _soften(attempt: Attempt, runner: RunnerHandle) -> None:
    runner.send(frames.SoftLimit(*attempt.key))
    soft_s, hard_s = attempt.assign.soft_limit_s, attempt.assign.timeout_s
    if hard_s:
        _later(attempt, hard_s - soft_s, _time_out, attempt, runner)


def _time_out(attempt: Attempt, runner: RunnerHandle) -> None:
    attempt.timed_out = True
    runner.kill()


def _give_up_load(attempt: Attempt, runner: RunnerHandle, load_s: float) -> None:
    attempt.load_timeout_s = load_s
    runner.kill()


def _later(attempt: Attempt, delay_s: float, call: Callable[..., None], *arguments: object) -> None:
    attempt.timers.append(asyncio.get_running_loop().call_later(delay_s, call, *arguments))
