"""Prefer the node whose free GPUs stay most useful to others: the one that is least fragmented afterwards.

Fragmentation is what typical requests (of 1, 2, 4 or 8 GPUs) would leave over, as in "Beware of
Fragmentation" (USENIX ATC 2023). So one GPU comes from a node with 5 free ones, which leaves 4, before one
with 2, and a whole node is broken up last. Among equals, few islands are broken up, a share leaves little
over, the node is full.
"""

from gpu_orchestrator.core.policy import Strategy
from gpu_orchestrator.policies import opinions

# Fragmentation changes by quarters of a GPU, so the weights after it only decide between equals.
strategy = Strategy(
    "leastFragmenting",
    (
        (10.0, opinions.without_gpus),
        (1.0, opinions.defragments),
        (0.1, opinions.keeps_islands),
        (0.05, opinions.tight_device),
        (0.01, opinions.full),
    ),
)
