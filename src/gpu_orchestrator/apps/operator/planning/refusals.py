"""What a scheduler's refusal is about: the nodes, of which another may fit, or the pod itself, which fits
on none.

Called by `claimed` and `running`. Against a missing volume, another node does not help.
"""

import re

BY_KUBE_SCHEDULER = re.compile(r"0/\d+ nodes are available: (?!\d)(.+?)(?:\. |\.?$)", re.DOTALL)
"""kube-scheduler counts nodes by reason, unless it refuses the pod before it looks at any node. What follows
the first sentence is about preemption."""


def by_kube_scheduler(message: str) -> str:
    """Return what is wrong with the pod; empty if the nodes are the reason."""
    found = BY_KUBE_SCHEDULER.match(message)
    return found[1].strip() if found else ""


def by_gpu_scheduler(message: str) -> str:
    """Return what is wrong with the pod; empty if the nodes are the reason. Those are always counted."""
    return "" if message.startswith("0/") else message
