"""How an attempt ended, as a message to the manager and as a reason for the log."""

from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker import frames
from gpu_orchestrator.apps.worker.attempt import Attempt


def of(frame: frames.Ended | frames.Erred | frames.Stopped, *, has_elsewhere: bool = True) -> session.Outcome:
    """Return the outcome that the runner reported. `has_elsewhere` is as in `Assign`."""
    match frame:
        case frames.Ended():
            return session.Done(frame.task, frame.attempt, frame.result)
        case frames.Erred():
            error = session.TaskError(frame.error, frame.message, frame.retryable)
            if frame.error == "OutOfMemory" and not has_elsewhere:
                said = f"{frame.message}; no other GPU could take this model, so the task is not retried"
                error = session.TaskError(frame.error, said)
            return session.Failed(frame.task, frame.attempt, error)
        case frames.Stopped():
            return session.Cancelled(frame.task, frame.attempt)


def runner_died(attempt: Attempt, evidence: str) -> session.Outcome:
    """Return the outcome of an attempt whose runner ended, perhaps killed by the agent, and reported none."""
    if attempt.is_cancelled:
        return session.Cancelled(*attempt.key)
    if attempt.timed_out:
        message = f"the task ran past its limit of {attempt.assign.timeout_s:g} s and was killed"
        return session.Failed(*attempt.key, error=session.TaskError("Timeout", message))
    if attempt.load_timeout_s and attempt.model:
        name, load_s = attempt.model.name, attempt.load_timeout_s
        message = (
            f"model {name!r} was not loaded within {load_s:g} s, and its runner was killed; "
            "raise MODEL_LOAD_TIMEOUT of the worker, or put the weights where they are read faster"
        )
        return session.Failed(
            *attempt.key, error=session.TaskError("ModelLoadTimeout", message, retryable=True)
        )
    return session.RunnerDied(*attempt.key, evidence=evidence)


def last_words(died: session.Outcome) -> str:
    """Return the last line for the log of an attempt whose runner ended; its output is there already."""
    match died:
        case session.RunnerDied():
            return f"{died.evidence.partition('; ')[0]}\n"
        case session.Failed():
            return f"{died.error.message}\n"
        case _:
            return ""


def failure_reason(ended: session.Outcome) -> str:
    """Return why an attempt has no result, or "" if it has one."""
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
