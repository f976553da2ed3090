"""Options that several commands share: which server, JSON, times in UTC."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter, Token

WHICH_SERVER = Group("Which server", sort_key=100)


@Parameter(name="*", group=WHICH_SERVER)
@dataclass(frozen=True, slots=True)
class Server:
    """What the command line says about the server; `where.py` adds the rest."""

    url: Annotated[
        str,
        Parameter(
            name="--url",
            metavar="URL",
            help="Its address, such as https://gpu.example:8000; else GPU_ORCHESTRATOR_URL, or what `login` "
            "or `up` stored.",
        ),
    ] = ""
    key_file: Annotated[
        Path | None,
        Parameter(
            name="--key-file", metavar="FILE", help="A file with your key; else API_KEY or API_KEY_FILE."
        ),
    ] = None
    ca: Annotated[
        Path | None,
        Parameter(
            name="--ca",
            metavar="FILE",
            help="The certificates to trust; else GPU_ORCHESTRATOR_CA, or those of the system.",
        ),
    ] = None


def whole(_kind: object, tokens: Sequence[Token]) -> int:
    """Read a whole number. The library would round 2.5."""
    return int(tokens[0].value)


HERE = Server()
Whole = Annotated[int, Parameter(converter=whole)]
AsJson = Annotated[bool, Parameter(name="--json", help="Print JSON.")]
InUtc = Annotated[bool, Parameter(name="--utc", help="Show times in UTC; by default in local time.")]
Limit = Annotated[Whole, Parameter(name="--limit", metavar="N", help="How many to show at most.")]
Offset = Annotated[Whole, Parameter(name="--offset", metavar="N", help="How many to skip.")]
TaskId = Annotated[str, Parameter(help="The id of the task, or a beginning of it that no other task has.")]
