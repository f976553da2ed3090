"""JSON that may be nested deeper than the C functions of `json` accept: about 1,000 levels, and from Python
3.12 on no setting changes that. These functions then go on in Python, which `sys.setrecursionlimit` allows.
"""

import json
from json import decoder, scanner
from typing import Any


def dumps(value: Any) -> str:
    try:
        return json.dumps(value)
    except RecursionError:
        return _text(value)


def loads(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        return _decoder().decode(text.decode())


def _text(value: Any) -> str:
    if isinstance(value, dict):
        pairs = [f"{json.dumps(key)}:{_text(each)}" for key, each in value.items()]
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join([_text(each) for each in value]) + "]"
    return json.dumps(value)


def _decoder() -> json.JSONDecoder:
    """Return a decoder whose parts are written in Python."""
    made: Any = json.JSONDecoder()
    made.parse_object, made.parse_array = decoder.JSONObject, decoder.JSONArray  # type: ignore[attr-defined]
    made.scan_once = scanner.py_make_scanner(made)  # type: ignore[attr-defined]
    found: json.JSONDecoder = made
    return found
