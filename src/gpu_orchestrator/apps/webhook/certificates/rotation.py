"""Decide the next step of the certificates. Pure: the keeper of each replica asks, and writes the answer.

    no Secret ── Make ──► serving ── AddNext: a third of its life is left ──► serving, next
                            ▲ │                                                    │
               DropOld ─────┘ │◄── Promote: the API servers trust both authorities ┘
        (expired, or too many)│
                           Restore ◄── the Secret was deleted or spoilt while replicas serve

Each step is one guarded write to the Secret: the replica that was second gets a conflict and reads again, so
that replicas need no leader. A new leaf is never served before its authority is trusted, and an authority is
trusted until the last leaf of it has expired. A clock that jumps can cause steps that were not due yet, but
none that an API server would refuse: what must be waited for is measured by `settled_s`, on a clock that
does not jump.
"""

from dataclasses import dataclass, replace

from gpu_orchestrator.apps.webhook.certificates.content import Authority, Content, Leaf

# Normally one old authority is left. More come only from clocks that disagree or settings that change.
MOST_OLD = 2


@dataclass(frozen=True, slots=True)
class Rules:
    """`rotate_after_s` is the age of a leaf at which the next one is made. `propagation_s` is how long an
    API server or a replica may take to see a change that we have seen."""

    names: frozenset[str]
    life_s: float
    rotate_after_s: float
    propagation_s: float


@dataclass(frozen=True, slots=True)
class View:
    """What one replica sees. `kept`: what it serves with. `settled_s`: for how long the Secret has been as it
    is (or missing) and every webhook configuration has shown its bundle; None: they do not yet. `may_others`:
    a configuration shows a bundle, so that other replicas may be serving."""

    found: Content | None
    kept: Content | None
    settled_s: float | None
    now_s: float
    may_others: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """Nothing is due; ask again after `for_s`, or when something changes."""

    for_s: float


@dataclass(frozen=True, slots=True)
class Make:
    """Make the first certificate: nobody serves yet."""


@dataclass(frozen=True, slots=True)
class Restore:
    """Write again what is served, with another certificate to come next: those who delete a Secret of
    certificates mean to have it renewed."""


@dataclass(frozen=True, slots=True)
class AddNext:
    """Make the next certificate and have its authority trusted."""

    why: str


@dataclass(frozen=True, slots=True)
class Promote:
    """Serve with the next certificate from now on."""


@dataclass(frozen=True, slots=True)
class DropOld:
    """Trust these authorities no longer."""

    authorities: tuple[Authority, ...]


Step = Make | Restore | AddNext | Promote | DropOld


@dataclass(frozen=True, slots=True)
class Issued:
    """A new leaf. Its authority signs nothing else."""

    leaf: Leaf


def decide(view: View, rules: Rules) -> Step | Keep:
    found, now_s = view.found, view.now_s
    if found is None:
        return _without_secret(view, rules)
    if why := _unfit(found.next, now_s, rules) if found.next else _worn(found.serving, now_s, rules):
        return AddNext(why)
    if view.settled_s is None or view.settled_s < rules.propagation_s:
        return Keep(rules.propagation_s - (view.settled_s or 0.0))
    if found.next:
        return Promote()
    if old := _dispensable(found, now_s):
        return DropOld(old)
    return Keep(_next_due_s(found, now_s, rules))


def _without_secret(view: View, rules: Rules) -> Step | Keep:
    """Restore what is served. A replica that has just started lets those do so that have something to
    restore: a certificate of its own would not be trusted yet."""
    missing_s = view.settled_s or 0.0
    if view.kept:
        return Restore()
    return (
        Keep(rules.propagation_s - missing_s)
        if view.may_others and missing_s < rules.propagation_s
        else Make()
    )


def perform(step: Step, view: View, issued: Issued | None) -> Content:
    """Return what the Secret shall hold. `issued` is needed by the steps that `needs_leaf` names."""
    match step, view.found, issued:
        case Make(), _, Issued(leaf):
            return Content(leaf, (leaf.authority,))
        case Restore(), _, Issued(leaf) if view.kept:
            return Content(view.kept.serving, (*view.kept.authorities, leaf.authority), leaf)
        case AddNext(), Content(authorities=known, next=unused) as found, Issued(leaf):
            # No replica has served with a `next` that is still one, so nobody needs its authority.
            rest = tuple(each for each in known if not unused or each != unused.authority)
            return replace(found, authorities=(*rest, leaf.authority), next=leaf)
        case Promote(), Content(next=Leaf() as leaf) as found, _:
            return replace(found, serving=leaf, next=None)
        case DropOld(old), Content(authorities=known) as found, _:
            return replace(found, authorities=tuple(each for each in known if each not in old))
    raise AssertionError(f"{step} does not suit {view}")


def needs_leaf(step: Step) -> bool:
    return isinstance(step, Make | Restore | AddNext)


def _worn(leaf: Leaf, now_s: float, rules: Rules) -> str:
    """Return why a leaf in use needs a successor; empty if it does not."""
    if now_s >= _rotate_at_s(leaf, rules):
        return f"it expires in {max(0.0, leaf.ends_s - now_s):.0f} s"
    return _unfit(leaf, now_s, rules)


def _unfit(leaf: Leaf, now_s: float, rules: Rules) -> str:
    """Return why no API server would accept this leaf; empty if they would."""
    if missing := rules.names - leaf.names:
        return f"it does not name {', '.join(sorted(missing))}"
    if now_s < leaf.starts_s:
        return "it is not valid yet by the clock of this replica"
    return "it has expired" if now_s >= leaf.ends_s else ""


def _rotate_at_s(leaf: Leaf, rules: Rules) -> float:
    return leaf.ends_s - max(0.0, rules.life_s - rules.rotate_after_s)


def _dispensable(content: Content, now_s: float) -> tuple[Authority, ...]:
    """Return old authorities that expired, and the oldest ones if there are too many."""
    old = content.old
    return tuple(each for at, each in enumerate(old) if each.ends_s <= now_s or at < len(old) - MOST_OLD)


def _next_due_s(content: Content, now_s: float, rules: Rules) -> float:
    due = [_rotate_at_s(content.serving, rules), *(each.ends_s for each in content.old)]
    return max(0.0, min(due) - now_s)
