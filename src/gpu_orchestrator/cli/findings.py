"""What `doctor` finds, and how it tells."""

import sys
from dataclasses import dataclass
from typing import Literal

from gpu_orchestrator.cli import output
from gpu_orchestrator.cli.tables import painted

Component = Literal["operator", "scheduler", "agent"]
MARKS = {True: ("ok    ", "green"), False: ("failed", "red"), None: ("-     ", "dim")}


@dataclass(frozen=True, slots=True)
class Finding:
    """`is_good` is None for something that is neither, but good to know."""

    is_good: bool | None
    text: str


def tell(finding: Finding) -> None:
    mark, colour = MARKS[finding.is_good]
    stream = sys.stderr if finding.is_good is False else sys.stdout
    print(f"{painted(mark, colour, output.page(stream))}  {finding.text}", file=stream, flush=True)
