"""How an attempt ended, as it is told to the server and to the log."""

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker.attempts.attempt import Attempt
from gpu_orchestrator.apps.worker.runners import frames


def of(frame: frames.Ended | frames.Erred | frames.Stopped) -> session.Outcome:
    """The runner's own words."""
    match frame:
        case frames.Ended():
            return session.Done(frame.task, frame.attempt, frame.result)
        case frames.Erred():
            error = session.TaskError(frame.error, frame.message, frame.retryable)
            return session.Failed(frame.task, frame.attempt, error)
        case frames.Stopped():
            return session.Cancelled(frame.task, frame.attempt)


def without_a_word(attempt: Attempt, evidence: str) -> session.Outcome:
    """The runner is gone; we may have been the reason."""
    if attempt.is_cancelled:
        return session.Cancelled(*attempt.key)
    if attempt.timed_out:
        message = f"the task ran past its limit of {attempt.assign.timeout_s:g} s and was killed"
        return session.Failed(*attempt.key, error=session.TaskError("Timeout", message))
    return session.RunnerDied(*attempt.key, evidence=evidence)


def in_words(ended: session.Outcome) -> str:
    """Why there is no result; empty when there is one."""
    match ended:
        case session.Done():
            return ""
        case session.Failed():
            return f"{ended.error.type}: {ended.error.message}"
        case session.RunnerDied():
            return ended.evidence
        case session.Refused():
            return ended.reason
        case session.Cancelled():
            return "cancelled"
