"""References to results of other tasks in the parameters of a task: `{"$result": "ID"}` stands for the result
of the task with this id. Pure, and on the text: what is not a reference stays as it was written.

Clients write them, the server checks them at submission, and puts the results in when it sends the task to a
worker. Inside a string of JSON a quote has a backslash before it, so nothing there looks like a reference.
"""

import re
from collections.abc import Callable, Mapping

_REFERENCE = re.compile(rb'\{\s*"\$result"\s*:\s*"([^"\\]{1,200})"\s*\}')
NONE = b"null"
"""In place of the result of a task that has none."""


def to(task_id: str) -> dict[str, str]:
    return {"$result": task_id}


def of(parameters: bytes) -> list[str]:
    """Return the ids that parameters refer to, one for each place."""
    return [each.decode(errors="replace") for each in _REFERENCE.findall(parameters)]


def filled(parameters: bytes, results: Mapping[str, bytes]) -> bytes:
    """Return the parameters with results in place of references."""
    return _REFERENCE.sub(lambda found: results.get(found[1].decode(errors="replace"), NONE), parameters)


def filled_size(parameters: bytes, size_of: Callable[[str], int]) -> int:
    """Return how many bytes the parameters will have, without making them."""
    return len(parameters) + sum(max(size_of(each), len(NONE)) for each in of(parameters))
