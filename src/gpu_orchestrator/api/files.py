"""Files that tasks take and leave: how parameters and results name them. Pure.

`{"$file": "ID", …}` stands for a file that its owner has uploaded, or that a task has left. On a worker it
has a `path` besides, where the file lies while the task runs."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

_NAMED = re.compile(rb'"\$file"\s*:\s*"(file-[0-9a-f]{32})"')
_SPELLED = re.compile(
    rb'"(?:[$]|\\u0024)(?:f|\\u0066)(?:i|\\u0069)(?:l|\\u006[cC])(?:e|\\u0065)"\s*:'  # however it is escaped
)
PREFIX = "file-"
LONGEST_NAME = 200


class AnyPath(Protocol):
    def __fspath__(self) -> str: ...


class File(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that the server keeps: an argument or a result of tasks. `path` is where it lies, inside a task
    that takes it; empty elsewhere."""

    id: str = msgspec.field(name="$file")
    name: str = ""
    bytes: int = 0
    path: str = ""

    @staticmethod
    def of(path: "str | AnyPath", name: str = "") -> "File":
        """Inside a task: let the server keep a file, and return what stands for it. The task returns or
        yields it, or it is an argument of another task. The file at `path` may be gone then."""
        if not _keep:
            raise RuntimeError("only a task can leave a file; elsewhere upload it with client.upload(path)")
        given = path if isinstance(path, str) else path.__fspath__()
        return _keep[-1](given, plain_name(name or given))


Keep = Callable[[str, str], File]
_keep: list[Keep] = []


def keep_with(keep: Keep | None) -> None:
    """Let `File.of` keep files with this function, or nowhere again."""
    _keep.clear()
    if keep is not None:
        _keep.append(keep)


def with_paths(parameters: bytes, paths: Mapping[str, str]) -> bytes:
    """Return parameters in which each file that is named has its path, and no other path: who submits a task
    may not choose which file of the worker its function opens."""
    if not _SPELLED.search(parameters):  # nearly always
        return parameters
    import json  # keeps numbers as they are, however large

    return json.dumps(_filled(json.loads(parameters), paths), separators=(",", ":")).encode()


def _filled(value: Any, paths: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_filled(each, paths) for each in value]
    if not isinstance(value, dict):
        return value
    filled = {name: _filled(each, paths) for name, each in value.items()}
    return {**filled, "path": paths.get(str(value["$file"]), "")} if "$file" in value else filled


def named_in(parameters: bytes) -> list[str]:
    """Return the ids of the files that parameters name, each once. Inside a string of JSON a quote has a
    backslash before it, so nothing there looks like one."""
    if b'"$file"' not in parameters:  # nearly always
        return []
    return list(dict.fromkeys(each.decode() for each in _NAMED.findall(parameters)))


def plain_name(given: str) -> str:
    """Return the last part of a path as a name that is safe in any folder and in any header."""
    last = re.split(r"[/\\]", given)[-1]
    kept = "".join(each if each.isprintable() and each not in '"%' else "_" for each in last).strip(". ")
    return kept.encode()[:LONGEST_NAME].decode(errors="ignore") or "file"
