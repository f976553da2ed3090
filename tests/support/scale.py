"""One scenario, two sizes: `scale(test=2, accept=20)` returns the size for the tier that is running."""

from dataclasses import dataclass
from typing import Literal, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scale:
    tier: Literal["test", "accept"]

    def __call__(self, *, test: T, accept: T) -> T:
        return test if self.tier == "test" else accept
