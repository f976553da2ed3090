"""What `doctor` finds, and how it tells."""

import sys
from dataclasses import dataclass
from typing import Literal

from gpu_orchestrator.cli import output
from gpu_orchestrator.cli.tables import Page, painted, wrapped

Component = Literal["operator", "scheduler", "webhook", "agent"]
MARKS = {True: ("ok    ", "green"), False: ("failed", "red"), None: ("-     ", "dim")}


@dataclass(frozen=True, slots=True)
class Finding:
    """`is_good` is None for something that is neither, but good to know."""

    is_good: bool | None
    text: str


def tell(finding: Finding) -> None:
    stream = sys.stderr if finding.is_good is False else sys.stdout
    for line in lines(finding, output.page(stream)):
        print(line, file=stream, flush=True)


def lines(finding: Finding, page: Page) -> list[str]:
    """Return the finding with its mark; on a terminal a long one goes on below its first word."""
    mark, colour = MARKS[finding.is_good]
    first, *more = wrapped(finding.text, len(mark) + 2, page.width)
    return [f"{painted(mark, colour, page)}  {first}", *(" " * (len(mark) + 2) + line for line in more)]
