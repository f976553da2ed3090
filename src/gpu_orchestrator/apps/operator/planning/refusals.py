"""What a scheduler's refusal is about: the nodes, of which another may fit, or the pod itself, which fits
on none.

Called by `claimed` and `running`. Against a missing volume, another node does not help.
"""

import re

BY_KUBE_SCHEDULER = re.compile(r"0/\d+ nodes are available: (?!\d)(.+?)(?:\. |\.?$)", re.DOTALL)
"""kube-scheduler counts nodes by reason, unless it refuses the pod before it looks at any node. What follows
the first sentence is about preemption."""


TOO_MANY_WAIT = re.compile(r"\d+ different GPU requests of namespace ")
"""The gpu-scheduler considers the pod later: neither a node nor the pod is wrong."""


def by_kube_scheduler(message: str) -> str:
    """Return what is wrong with the pod; empty if the nodes are the reason."""
    found = BY_KUBE_SCHEDULER.match(message)
    return found[1].strip() if found else ""


def by_gpu_scheduler(message: str) -> str:
    """Return what is wrong with the pod; empty if the nodes are the reason, which are always counted, or if
    others go first."""
    return "" if message.startswith("0/") or TOO_MANY_WAIT.match(message) else message
