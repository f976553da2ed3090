"""Parameters of a task as people type them: JSON, pairs, a file or stdin."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_orchestrator.cli import output, times

STDIN = "@-"
EXAMPLE = "write for example '{\"seconds\": 1}' or seconds=1"


def read(given: Sequence[str]) -> Any:
    """Return the parameters, or end the command with what is wrong about them."""
    if not given:
        return {}
    if len(given) == 1 and given[0] in ("-", STDIN):
        return _json(sys.stdin.read() if sys.stdin else "", "stdin")
    if len(given) == 1 and given[0].startswith("@"):
        return _json(_file(given[0][1:]), given[0][1:])
    if any("=" not in each or each.lstrip().startswith(("{", "[")) for each in given):
        if len(given) > 1:
            odd = next(each for each in given if "=" not in each or each.lstrip().startswith(("{", "[")))
            output.fail(f"{odd} is not a pair; give pairs such as seconds=1, or JSON in one word", code=2)
        return _json(given[0], "")
    pairs = [_pair(each) for each in given]
    names = [name for name, _ in pairs]
    if "" in names:
        output.fail(f"{given[names.index('')]} has no name; give pairs such as seconds=1", code=2)
    if twice := [name for name in names if names.count(name) > 1]:
        output.fail(f"{twice[0]} is given twice; give it once", code=2)
    return dict(pairs)


def seconds(text: str, option: str) -> float:
    """Return a time that is given in seconds (`90`) or with a unit (`30m`)."""
    try:
        return float(text) if text.replace(".", "", 1).isdecimal() else times.seconds(text)
    except ValueError:
        output.fail(f"{option} {text} is not a time; write seconds, or for example 30m", code=2)


def _pair(given: str) -> tuple[str, Any]:
    """Return name and value. A value that is JSON means what it means there: a number, true, null, a list."""
    name, _, text = given.partition("=")
    try:
        return name, json.loads(text, parse_constant=_not_json)
    except (ValueError, RecursionError):
        return name, text


def _file(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeError, ValueError, RuntimeError) as error:
        why = (getattr(error, "strerror", None) or "it is not text").lower()
        output.fail(f"@{path} cannot be read: {why}; give a file with JSON")


def _json(text: str, source: str) -> Any:
    try:
        return json.loads(text, parse_constant=_not_json)
    except (ValueError, RecursionError) as error:
        why = "they are nested too deep" if isinstance(error, RecursionError) else str(error)
        place = f"in {source} " if source else ""
        output.fail(f"the parameters {place}are not valid JSON: {why}; {EXAMPLE}")


def _not_json(word: str) -> Any:
    raise ValueError(f"{word} is not a number in JSON")
