"""Certificates as plain values, for decisions that need no cryptography."""

from itertools import count

from gpu_orchestrator.apps.webhook.certificates.content import Authority, Content, Leaf
from gpu_orchestrator.apps.webhook.certificates.rotation import Issued, Rules

NAMES = frozenset({"webhook.system.svc"})
LIFE_S = 90.0
RULES = Rules(NAMES, life_s=LIFE_S, rotate_after_s=60.0, propagation_s=5.0)

_numbers = count(1)


def leaf(
    name: str = "", *, ends_s: float = LIFE_S, starts_s: float = 0.0, names: frozenset[str] = NAMES
) -> Leaf:
    """Return a leaf of an authority of its own, both called `name`."""
    name = name or str(next(_numbers))
    return Leaf(f"leaf-{name}", f"key-{name}", Authority(f"[ca-{name}]", ends_s), names, starts_s, ends_s)


def content(serving: Leaf, *others: Leaf, to_come: Leaf | None = None) -> Content:
    """Return a Secret's content that trusts the authorities of `others`, of `serving` and of the next one, in
    this order."""
    trusted = (*others, serving, *([to_come] if to_come else []))
    return Content(serving, tuple(each.authority for each in trusted), to_come)


def issued(now_s: float, rules: Rules = RULES) -> Issued:
    """Return a new leaf, valid from a moment before `now_s`."""
    return Issued(leaf(starts_s=now_s - 1.0, ends_s=now_s + rules.life_s, names=rules.names))
