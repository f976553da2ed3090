"""What the server refused, in the words of somebody who typed a command and sent no HTTP. Pure."""

import re

from gpu_orchestrator.cli.where import Place

OPTIONS = {
    "task_type": "TASK-TYPE",
    "parameters": "PARAMETERS",
    "model_name": "--model",
    "priority": "--priority",
    "timeout": "--timeout",
    "resources.gpu_memory": "--memory",
    "resources.gpus": "--gpus",
    "resources.vendor": "--vendor",
    "max_retries": "--retries",
    "idempotency_key": "--idempotency-key",
    "labels": "--label",
    "callback_url": "--callback-url",
    "name": "NAME",
    "owner": "--owner",
    "scopes": "--scope",
    "expires_in": "--expires",
    "limits": "--limit",
    "limit": "--limit",
    "offset": "--offset",
    "before": "--before",
    "after": "--after",
    "since": "--since",
    "label": "--label",
    "worker_id": "--worker",
    "gpu_type": "--gpu-type",
    "schedule": "SCHEDULE",
    "jitter": "--jitter",
    "task.labels": "--label",
    "task.parameters": "PARAMETERS",
    "task.expires": "--expires",
}
"""Fields of request bodies and query parameters, and what the command line calls them."""
_FIELD = re.compile(r"([a-z_.]+)((?:\[[^\]]*\])?)( is |=|: |; )(.*)", re.DOTALL)
_INPUT = {
    "Input should be greater than or equal to ": "give at least ",
    "Input should be less than or equal to ": "give at most ",
    "Input should be greater than ": "give more than ",
    "Input should be less than ": "give less than ",
}
_SCHEMA = re.compile(r"the body does not (?:match the schema|fit): (.*) - at `?\$\.?([^`]*)`?(.*)", re.DOTALL)
_BOUND = re.compile(r"Expected `(int|float|str)`(?: of length)? (<=|>=|<|>) ([\d.]+)")
_BOUNDS = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than"}
_KINDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}


def in_words(status: int, message: str, place: Place) -> str:
    """Return the message for the user."""
    if status == 401:
        return _no_entry(message, place)
    if message in ("Not Found", "Method Not Allowed"):
        return f"the server at {place.url} does not know this command; is it older than this program?"
    if found := _SCHEMA.fullmatch(message):
        return f"{_option(found[2])}: {_wrong(found[1])}{found[3]}"
    if status == 422 and (found := _FIELD.fullmatch(message)) and found[1] in OPTIONS:
        sign = " " if found[3] == "=" else found[3]
        return f"{OPTIONS[found[1]]}{sign}{_plain(found[4])}"
    return message


def _no_entry(message: str, place: Place) -> str:
    if not place.key:
        return (
            f"{place.url} asks for a key; get one from its operator, then run "
            f"`gpu-orchestrator login {place.url}`, or set API_KEY"
        )
    return (
        f"{message} (the key is from {place.key_found}; `gpu-orchestrator login {place.url}` takes another)"
    )


def _plain(words: str) -> str:
    for theirs, ours in _INPUT.items():
        words = words.replace(theirs, ours)
    return words


def _option(path: str) -> str:
    """Return the option for a path such as `resources.gpus` or `scopes[0]`."""
    name = re.sub(r"\[.*", "", path)
    while name:
        if name in OPTIONS:
            return OPTIONS[name]
        name = name.rpartition(".")[0]
    return path or "the request"


def _wrong(words: str) -> str:
    if found := _BOUND.match(words):
        kind, sign, bound = found.groups()
        letters = " letters" if kind == "str" else ""
        return f"give {_KINDS[kind]} of {_BOUNDS[sign]} {float(bound):g}{letters}"
    if found := re.match(r"Expected `(\w+)`, got `(\w+)`", words):
        return f"give {_KINDS.get(found[1], found[1])}"
    return words.replace("`", "")
