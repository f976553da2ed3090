"""What every filter can do."""

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gpu_orchestrator.core.answer import singular
from gpu_orchestrator.core.columns import Bools, Ints

if TYPE_CHECKING:
    from gpu_orchestrator.core.cluster import Cluster


class Filter:
    """`fact`: depends on the node alone, not on what is free. `lasting`: a node that fails will not pass
    by itself (when others end, when it becomes ready or healthy), so it says that a request can never fit."""

    fact: ClassVar[bool] = True
    lasting: ClassVar[bool] = False
    reason: str = ""

    def passes(self, cluster: "Cluster", rows: Ints) -> Bools:
        """For each row, whether the node can still be taken."""
        raise NotImplementedError

    def reasons(self, cluster: "Cluster", rows: Ints) -> dict[str, int]:
        """How many of these rows, all of which fail, fail for what reason."""
        return {self.reason: len(rows)}

    def lack(self, cluster: "Cluster", row: int) -> str:
        """What this one node lacks, in words that follow its name."""
        return singular(next(iter(self.reasons(cluster, np.array([row])))))
