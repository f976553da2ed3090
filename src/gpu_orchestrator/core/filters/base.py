"""The interface of all filters."""

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gpu_orchestrator.core.answer import singular
from gpu_orchestrator.core.columns import Bools, Ints

if TYPE_CHECKING:
    from gpu_orchestrator.core.cluster import Cluster


class Filter:
    """`fact`: depends on the node alone, not on what is free; None if it depends on other nodes as well.
    `lasting`: a node that fails does not pass later by itself (when others end, when it becomes ready or
    healthy), so the request can never fit there."""

    fact: ClassVar[bool | None] = True
    lasting: ClassVar[bool] = False
    reason: str = ""

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        """Return for each row whether the node passes."""
        raise NotImplementedError

    def reasons(self, cluster: "Cluster", rows: Ints) -> dict[str, int]:
        """Count these rows, all of which fail, by reason."""
        return {self.reason: len(rows)}

    def lack(self, cluster: "Cluster", row: int) -> str:
        """Return what this node lacks, in words that follow its name."""
        return singular(next(iter(self.reasons(cluster, np.array([row])))))
