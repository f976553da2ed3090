"""What each flow has had, what it holds now, and how much it may hold at once.

Start-time fair queueing: the more a flow was given, the later its next turn, on one scale for all flows.
Starting costs a little and holding costs as time passes, so flows share devices rather than starts. Holding
counts only while other flows wait, because devices that no other flow wants are free. Kept by the engine;
queues ask it which flow is next.

A flow may be a queue with quota, below others: then each queue takes turns with its siblings, by weight, and
what is had below it counts as its own. Of siblings, those that use less than they are guaranteed come first,
or they would have it back by evicting others.
"""

from collections.abc import Iterator

from gpu_orchestrator.core.queues import QueueNode, Queues

BEGINNING_S = 0.01
"""What starting costs, in seconds of holding. Without it, a flow of very short requests would never pay."""

MOST_AHEAD_S = 86_400.0
"""A flow never owes more than it holds in this time, or than one device in this time."""

FORGET_ABOVE = 4096

FEW = 16
PER_FLOW_S = 0.0005
"""Up to FEW flows that hold something are charged at every event. With more, each costs this much of a wait,
so that a thousand of them take no noticeable part of the time."""

Start = tuple[float, ...]
"""The turn of a flow: the smaller, the earlier. For a queue, from the top down: whether it has all that it is
guaranteed, and what it has had."""


class _Node:
    """A flow, or a queue with all flows below it. `next` is its next turn on the scale of its siblings, whose
    moment is `now` of the node above. `rate` is the cost per second of all that is held, charged up to
    `since`. `eager` counts the flows that have waiting requests and are not full."""

    __slots__ = (
        "eager",
        "holds",
        "most",
        "name",
        "next",
        "now",
        "path",
        "queue",
        "rate",
        "since",
        "up",
        "waits",
        "weight",
    )

    def __init__(self, name: str, up: "_Node | None", queue: QueueNode | None = None) -> None:
        self.name, self.up, self.queue = name, up, queue
        self.weight = 1.0
        self.next = self.now = self.rate = self.since = 0.0
        self.eager = self.waits = self.holds = 0
        self.most: int | None = None
        self.path: tuple[_Node, ...] = (self,)

    @property
    def is_full(self) -> bool:
        return self.most is not None and self.holds >= self.most

    @property
    def is_idle(self) -> bool:
        above = self.up
        is_paid = above is None or self.next <= above.now
        return is_paid and not self.holds and not self.waits and self.most is None

    def start(self) -> float:
        above = self.up
        return self.next if above is None else max(self.next, above.now)

    def pay(self, now: float, quiet: float) -> bool:
        """Charge up to now, if others beside it wait; return True if that is anything. Nobody waited at the
        moment `quiet`. A clock that goes back charges nothing."""
        passed_s, self.since = now - max(self.since, quiet), now
        above = self.up
        if passed_s <= 0.0 or not self.rate or above is None or above.eager == self.eager:
            return False
        limit = above.now + MOST_AHEAD_S * max(self.rate, 1.0)
        self.next = max(self.next, min(self.next + self.rate * passed_s, limit))
        return True


class FairShare:
    """A flow that was away does not save up turns."""

    def __init__(self, queues: Queues | None = None) -> None:
        self._queues = queues
        self._top = _Node("", None)
        self._flows: dict[str, _Node] = {}
        self._groups: dict[str, _Node] = {}
        """By queue: the node of all that is below it, its own requests as well."""
        self._holding: dict[_Node, None] = {}
        self._clock = self._paid_at = self._quiet = 0.0
        self._is_single = False
        """True while there is one flow only: then nothing but the number of its placements counts."""
        self._held: dict[str, tuple[str, float]] = {}
        self._full: set[str] = set()
        self._is_arranged = True
        self._forget_above = FORGET_ABOVE
        self._version = self._epoch = 0

    @property
    def version(self) -> int:
        """Changes whenever the turn of a flow may have."""
        return self._version + self.backs

    @property
    def epoch(self) -> int:
        """Changes whenever the turns of many flows may have. Otherwise those that change become later, but
        for the few of `earlier_since`."""
        return self._epoch

    def earlier_since(self, backs: int) -> list[str] | None:
        """Return the flows whose turn may be earlier than when `backs` was this; None if all may."""
        return [] if self._queues is None else self._queues.dropped_since(backs)

    @property
    def backs(self) -> int:
        """Changes whenever the turn of a flow may have become earlier."""
        return 0 if self._queues is None else self._queues.backs

    def start(self, flow: str) -> Start:
        path = self._flow(flow).path
        if len(path) == 1:
            return 1.0, path[0].start()
        return tuple(self._starts(path))

    def _starts(self, path: tuple[_Node, ...]) -> Iterator[float]:
        for node in path:
            yield 0.0 if node.queue is not None and node.queue.is_below else 1.0
            yield node.start()

    def is_full(self, flow: str) -> bool:
        """Return True if the flow is at its limit: none of its requests may start."""
        return flow in self._full

    def room(self, flow: str) -> int | None:
        """Return how many more placements the flow may hold; None means no limit."""
        of = self._flows.get(flow)
        return None if of is None or of.most is None else max(of.most - of.holds, 0)

    def joins(self, flow: str, count: int = 1) -> None:
        """Count more waiting requests of the flow."""
        node = self._flow(flow)
        was = node.waits > 0
        node.waits += count
        if self._is_single:
            return
        if (node.waits > 0) is not was and flow not in self._full:
            self._wants(node, -1 if was else 1)

    def leaves(self, flow: str, count: int = 1) -> None:
        self.joins(flow, -count)

    def pass_time(self, now: float) -> None:
        """Charge flows up to now for what they hold while others wait."""
        self._clock = now
        if self._is_single or not self._top.eager:
            self._quiet = now
            return
        count = len(self._holding)
        if count > FEW and 0.0 <= now - self._paid_at < count * PER_FLOW_S:
            return
        self._paid_at = now
        if sum([node.pay(now, self._quiet) for node in self._holding]):
            self._version += 1
            self._epoch += 1

    def charge(self, flow: str, cost: float) -> None:
        """Charge the flow for a request that starts."""
        self._version += 1
        for node in self._flow(flow).path:
            if (above := node.up) is not None:
                # First `now`: it must not pass others that are charged as late as this one.
                above.now = node.next = node.start()
                if not self._is_single:
                    node.pay(self._clock, self._quiet)
                node.next += cost / node.weight * BEGINNING_S

    def take(self, key: str, flow: str, cost: float) -> bool:
        """Count one more placement of the flow, once per key. Return True if its at-limit state changed."""
        if key in self._held:
            return False
        self._held[key] = (flow, cost)
        node = self._flow(flow)
        if not self._is_single:
            self._hold(node, cost)
        node.holds += 1
        return node.most is not None and self._judge(node)

    def let_go(self, key: str) -> bool:
        """Stop counting the placement of this key. Return True if its flow's at-limit state changed."""
        if (held := self._held.pop(key, None)) is None:
            return False
        flow, cost = held
        node = self._flow(flow)
        if not self._is_single:
            self._hold(node, -cost)
        node.holds -= 1
        return node.most is not None and self._judge(node)

    def allow(self, flow: str, most: int | None) -> bool:
        """Set how many placements the flow may hold at once; None means no limit. Return True if its at-limit
        state changed."""
        node = self._flow(flow)
        node.most = most
        return self._judge(node)

    def rearrange(self) -> None:
        """Queues came, went or are declared otherwise."""
        self._is_arranged = False
        self._version += 1
        self._epoch += 1

    def _judge(self, node: _Node) -> bool:
        """Return True if the flow's at-limit state changed."""
        was = node.name in self._full
        if node.is_full is was:
            return False
        (self._full.discard if was else self._full.add)(node.name)
        if node.waits > 0:
            self._wants(node, 1 if was else -1)
        return True

    # --- the tree ----------------------------------------------------------------------------------------

    def _flow(self, flow: str) -> _Node:
        if not self._is_arranged:
            self._arrange()
        return self._flows.get(flow) or self._new(flow)

    def _new(self, flow: str) -> _Node:
        if len(self._flows) >= self._forget_above:
            self._forget()
        node = self._flows[flow] = _Node(flow, self._top)
        self._put(node)
        was_single, self._is_single = self._is_single, len(self._flows) == 1
        if was_single:
            self._arrange()
        return node

    def _put(self, node: _Node) -> None:
        """Put a flow below its queue, if it is one."""
        queue = self._queues.node(node.name) if self._queues and node.name else None
        above = self._top
        path: list[_Node] = []
        for each in reversed(queue.path if queue is not None and queue.terms is not None else ()):
            group = self._groups.get(each.name)
            if group is None:
                group = self._groups[each.name] = _Node(each.name, above)
            _move(group, above)
            group.queue, group.weight = each, _weight(each)
            path.append(group)
            above = group
        _move(node, above)
        node.path = (*path, node)

    def _arrange(self) -> None:
        self._is_arranged = True
        for node in self._holding:
            node.pay(self._clock, self._quiet)
        self._top.eager = 0
        for group in self._groups.values():
            group.eager, group.rate = 0, 0.0
        self._holding.clear()
        held: dict[str, float] = {}
        for flow, cost in self._held.values():
            held[flow] = held.get(flow, 0.0) + cost
        for node in self._flows.values():
            node.eager, node.rate = 0, 0.0
            self._put(node)
            if node.waits > 0 and node.name not in self._full:
                self._wants(node, 1)
            if node.holds:
                self._hold(node, held.get(node.name, 0.0))
        used = {each.name for node in self._flows.values() for each in node.path[:-1]}
        self._groups = {name: each for name, each in self._groups.items() if name in used}

    def _wants(self, node: _Node, change: int) -> None:
        for each in node.path:
            each.eager += change
        self._top.eager += change

    def _hold(self, node: _Node, cost: float) -> None:
        """Count so much more of what is held, in the flow and all queues above it."""
        for each in node.path:
            each.pay(self._clock, self._quiet)
            each.rate += cost / each.weight
            if each.rate > 1e-9:
                self._holding[each] = None
            else:
                each.rate = 0.0
                self._holding.pop(each, None)

    def _forget(self) -> None:
        """Drop flows that have nothing and owe nothing."""
        self._flows = {name: each for name, each in self._flows.items() if not each.is_idle}
        self._forget_above = max(FORGET_ABOVE, 2 * len(self._flows))


def _move(node: _Node, above: _Node) -> None:
    """Put a node below another one; it keeps what it owes beside its siblings."""
    if node.up is not above:
        owes = max(node.next - node.up.now, 0.0) if node.up else 0.0
        node.up, node.next = above, above.now + owes


def _weight(queue: QueueNode) -> float:
    return queue.terms.weight if queue.terms is not None and not queue.problem else 1.0
