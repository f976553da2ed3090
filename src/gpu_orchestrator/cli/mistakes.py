"""Mistakes on the command line as one plain line: what was typed, what was meant, where to read more."""

import difflib
from collections.abc import Iterable, Sequence
from types import UnionType
from typing import Any, get_args, get_origin

from cyclopts import App, CycloptsError
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from gpu_orchestrator.cli.output import PROGRAM

LIKELY = {
    "ls": ("list",),
    "ps": ("list", "status"),
    "rm": ("cancel", "remove", "revoke"),
    "delete": ("cancel", "remove", "revoke"),
    "kill": ("cancel",),
    "stop": ("cancel", "drain"),
    "describe": ("get", "show"),
    "show": ("get",),
    "get": ("show", "list"),
    "new": ("submit", "create"),
    "add": ("submit", "create"),
    "run": ("submit", "up"),
    "start": ("up",),
    "tasks": ("task",),
    "version": ("--version",),
}
"""What people type out of habit, and the commands that they may mean."""
OF_TASKS = ("submit", "list", "ls", "ps", "get", "watch", "logs", "wait", "explain", "cancel", "retry")
"""Typed without `task`."""
EXTRAS = {
    "agent": "agent",
    "backup": "manager",
    "restore": "manager",
    "server": "manager",
    "up": "manager",
    "webhook": "webhook",
    "worker": "manager",
}
"""Commands that need more than `pip install gpu-orchestrator` brings, and the extra that has it."""
KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


def missing(words: Sequence[str], error: BaseException) -> str:
    """Return the line for a command whose extra is not installed; empty if that is not what is wrong."""
    if not isinstance(error, ModuleNotFoundError) and error.__cause__ is not None:
        return missing(words, error.__cause__)
    command, module = words[0] if words else "", getattr(error, "name", None) or ""
    if command not in EXTRAS or module.partition(".")[0] in ("", "gpu_orchestrator"):
        return ""
    return (
        f"{PROGRAM} {command} needs {module}, which is not installed; it comes with "
        f"pip install '{PROGRAM}[{EXTRAS[command]}]', from a clone pip install '.[{EXTRAS[command]}]'"
    )


def words(error: CycloptsError) -> str:
    """Return the line for this mistake."""
    match error:
        case UnknownCommandError(unused_tokens=[token, *_]):
            return _unknown(token, error)
        case UnusedCliTokensError(unused_tokens=[token, *_]):
            if error.app is not None and _commands(error.app):
                return _unknown(token, error)
            return f"{token} is too much here; {_help(error)} shows what the command takes"
        case UnknownOptionError():
            token = error.token.keyword or error.token.value
            options = [name for each in error.argument_collection if each.parse for name in each.names]
            return f"unknown option {token}{meant(token, options) or '; ' + _help(error) + ' lists them'}"
        case CoercionError():
            return _wrong_kind(error)
        case MissingArgumentError():
            return _missing(error)
        case RepeatArgumentError():
            return f"{error.token.keyword} is given twice; give it once"
    text = str(error).strip().rstrip(".")
    return f"{text[:1].lower()}{text[1:]}; see {_help(error)}"


def meant(given: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?`, or nothing if no known word is near."""
    bare = {each.lstrip("-"): each for each in known}  # all options share the dashes
    close = difflib.get_close_matches(given.lstrip("-"), list(bare), 1, 0.6)
    return f"; did you mean {bare[close[0]]}?" if close else ""


def unknown(kind: str, given: str, known: Iterable[str]) -> str:
    """`unknown status quened; did you mean queued? known: …`."""
    words = list(known)
    return f"unknown {kind} {given}{meant(given, words) or ';'} known: {', '.join(words)}"


def _unknown(token: str, error: CycloptsError) -> str:
    if token.startswith("-"):
        return f"unknown option {token}; {_help(error)} lists them"
    known = _commands(error.app) if error.app is not None else []
    likely = [each for each in LIKELY.get(token, ()) if error.app is not None and each in error.app]
    if "task" in known and token in OF_TASKS:
        likely = [f"task {'list' if token in ('ls', 'ps') else token}"]
    hint = f"; did you mean {likely[0]}?" if likely else meant(token, known)
    return f"unknown command {token}{hint or '; known: ' + ', '.join(known)}"


def _commands(app: App) -> list[str]:
    return [name for name in app if not name.startswith("-")]


def _wrong_kind(error: CoercionError) -> str:
    token = error.token
    kind: Any = error.target_type
    name = (token.keyword if token else "") or _name(error)
    value = token.value if token else ""
    if error.argument is not None and (choices := _choices(kind)):
        return f"{name} {value} is not one of {', '.join(choices)}{meant(value, choices)}"
    if isinstance(kind, UnionType):  # `int | None`
        kind = get_args(kind)[0]
    if kind in KINDS:
        return f"{name} {value} is not {KINDS[kind]}"
    return f"{name} cannot be {value or 'that'}; see {_help(error)}"


def _choices(kind: Any) -> list[str]:
    from typing import Literal

    return [str(each) for each in get_args(kind)] if get_origin(kind) is Literal else []


def _missing(error: MissingArgumentError) -> str:
    name = error.keyword or _name(error)
    if name.startswith("-"):
        return f"{name} needs a value; see {_help(error)}"
    return f"{name} is missing; see {_help(error)}"


def _name(error: CycloptsError) -> str:
    """Return an option's name, or that of a value without one in capitals."""
    name = error.argument.name if error.argument is not None else "a value"
    is_typed = error.argument is not None and error.argument.field_info.is_keyword
    return name if is_typed and name.startswith("--") else name.lstrip("-").upper()


def _help(error: CycloptsError) -> str:
    return f"`{' '.join([PROGRAM, *(error.command_chain or ())])} --help`"
