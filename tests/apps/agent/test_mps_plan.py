"""Which MPS daemons are started, listed and ended, and when: in virtual time."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.api.mps import Daemon
from gpu_orchestrator.apps.agent import mps_plan
from gpu_orchestrator.apps.agent.mps_plan import GRACE_S, LONGEST_PAUSE_S, STEADY_S, Phase, Slot, plan
from tests.support.examples import cases

A, B = Daemon("team", (0,), 1024, 250, ("GPU-0",)), Daemon("team", (0, 1), 2048, 0, ("GPU-0", "GPU-1"))
REPLACED = Daemon("team", (0,), 1024, 250, ("GPU-9",))


@dataclass
class Node:
    """A node without processes: what it is told to do is done when the test says so."""

    slots: dict[str, Slot] = field(default_factory=dict)
    now: float = 100.0
    needed: tuple[Daemon, ...] = ()
    written: list[str] = field(default_factory=list)

    def step(self) -> mps_plan.Plan:
        todo = plan(self.slots, self.needed, self.written, self.now)
        self.slots = todo.slots
        return todo

    def listening(self, *daemons: Daemon) -> "Node":
        self.needed = daemons
        assert self.step().start == daemons
        for daemon in daemons:
            self.slots = mps_plan.listening(self.slots, daemon.folder, self.now)
        self.write()
        return self

    def write(self) -> None:
        self.written = self.listed

    @property
    def listed(self) -> list[str]:
        return mps_plan.listed(self.slots, self.needed)


def test_daemon_is_listed_only_when_it_listens() -> None:
    node = Node(needed=(A,))
    assert node.step().start == (A,)
    assert node.listed == []
    assert node.step().start == (), "it is on its way"
    node.slots = mps_plan.listening(node.slots, A.folder, node.now)
    assert node.listed == [A.folder]


def test_daemon_that_nobody_needs_ends_half_a_minute_after_it_left_the_written_report() -> None:
    node = Node().listening(A, B)
    node.needed = (B,)
    assert node.step().end == ()
    assert node.listed == [B.folder], "it leaves the report at once"
    node.now += 1000
    assert node.step().end == (), "the API server was away: the old report is what schedulers see"
    node.write()
    assert node.step().again_at == node.now + GRACE_S
    node.now += GRACE_S - 1
    assert node.step().end == ()
    node.now += 1
    assert node.step().end == (A.folder,)
    assert node.step().end == (), "it is being ended"
    assert node.step().again_at is None


def test_daemon_that_is_needed_again_in_time_goes_on() -> None:
    node = Node().listening(A)
    node.needed = ()
    node.step()
    node.write()
    node.step()
    node.now += GRACE_S - 1
    node.needed = (A,)
    assert node.step() == mps_plan.Plan(node.slots)
    assert node.listed == [A.folder]
    node.now += 1000
    assert node.step().end == ()


def test_daemon_that_ended_leaves_the_report_and_starts_again() -> None:
    node = Node().listening(A)
    node.now += STEADY_S
    node.slots = mps_plan.failed(node.slots, A.folder, node.now)
    assert node.listed == []
    assert node.step().start == (A,), "at once: it was steady"


def test_daemon_that_ends_again_and_again_is_started_ever_later() -> None:
    node, pauses = Node(needed=(A,)), list[float]()
    for _ in range(9):
        assert node.step().start == (A,)
        node.slots = mps_plan.failed(node.slots, A.folder, node.now)
        again_at = node.step().again_at
        assert again_at is not None
        pauses.append(again_at - node.now)
        node.now = again_at
    assert pauses == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_daemon_of_a_replaced_device_ends_before_another_has_its_folder() -> None:
    assert REPLACED.folder == A.folder
    node = Node().listening(A)
    node.needed = (REPLACED,)
    todo = node.step()
    assert (todo.start, todo.end) == ((), (A.folder,))
    assert node.listed == []
    node.slots = mps_plan.gone(node.slots, A.folder)
    assert node.step().start == (REPLACED,)


def test_leftovers_are_taken_over_or_removed() -> None:
    node = Node(slots=mps_plan.leftovers([A.folder, B.folder], 100.0), needed=(A,))
    assert node.step().start == (A,)
    node.now += GRACE_S
    assert node.step().end == (B.folder,)


def test_late_word_of_a_daemon_that_is_being_ended_changes_nothing() -> None:
    node = Node().listening(A)
    node.needed, node.written = (REPLACED,), []
    node.step()
    before = dict(node.slots)
    assert mps_plan.failed(before, A.folder, node.now) == before
    assert mps_plan.listening(before, A.folder, node.now) == before
    assert mps_plan.failed({}, A.folder, node.now) == {}


DAEMONS = (A, B, Daemon("other", (1,), 512, 0, ("GPU-1",)))
EVENTS = st.one_of(
    st.tuples(st.just("need"), st.sets(st.sampled_from(DAEMONS))),
    st.tuples(st.just("pass"), st.floats(0, 40)),
    st.tuples(st.sampled_from(["listen", "fail", "end"]), st.sampled_from(DAEMONS)),
    st.tuples(st.just("write"), st.none()),
)


@cases(300)
@given(st.lists(EVENTS, max_size=40))
def test_no_daemon_ends_that_a_scheduler_may_count_on(events: list[tuple[str, object]]) -> None:
    """And when all is quiet, exactly those run that are needed."""
    node, off_since = Node(), dict[str, float]()
    for kind, value in events:
        _happen(node, kind, value)
        _check(node, off_since)
    for _ in range(12):
        for daemon in DAEMONS:
            for kind in ("listen", "end"):
                _happen(node, kind, daemon)
        node.write()
        node.now += LONGEST_PAUSE_S
        _check(node, off_since)
    assert node.listed == sorted(each.folder for each in node.needed)
    assert set(node.slots) == {each.folder for each in node.needed}


def _happen(node: Node, kind: str, value: object) -> None:
    if kind == "need" and isinstance(value, set):
        node.needed = tuple(sorted(value))
    elif kind == "pass" and isinstance(value, float):
        node.now += value
    elif kind == "write":
        node.write()
    elif isinstance(value, Daemon):
        slot = node.slots.get(value.folder)
        if kind == "listen":
            node.slots = mps_plan.listening(node.slots, value.folder, node.now)
        elif kind == "fail":
            node.slots = mps_plan.failed(node.slots, value.folder, node.now)
        elif slot is not None and slot.phase is Phase.ENDING:
            node.slots = mps_plan.gone(node.slots, value.folder)


def _check(node: Node, off_since: dict[str, float]) -> None:
    needed = {each.folder for each in node.needed}
    for daemon in DAEMONS:
        if daemon.folder in needed or daemon.folder in node.written:
            off_since.pop(daemon.folder, None)
        else:
            off_since.setdefault(daemon.folder, node.now)
    todo = node.step()
    for folder in todo.end:
        assert node.now >= off_since[folder] + GRACE_S
    assert {each.folder for each in todo.start} <= needed
    assert set(node.listed) <= needed
    assert todo.again_at is None or todo.again_at > node.now


def test_room_for_daemons_is_shared_by_namespaces() -> None:
    """Each namespace in turn, half of the room at most; what runs or was reported stays."""
    greedy = [Daemon("a", (0,), mib) for mib in range(1, 10)]
    modest = [Daemon("b", (0,), 1), Daemon("c", (0,), 1)]
    assert mps_plan.admitted({}, greedy, [], 6) == tuple(greedy[:3])
    assert mps_plan.admitted({}, [*greedy, *modest], [], 4) == (*greedy[:2], *modest)
    assert mps_plan.admitted({}, [*greedy, *modest], [], 1) == (greedy[0],)
    running = {each.folder: Slot(each, Phase.LISTENING, 0.0) for each in greedy[5:8]}
    assert mps_plan.admitted(running, [*greedy, *modest], [], 4) == (*greedy[5:8], modest[0])
    assert mps_plan.admitted(running, modest, [], 4) == (modest[0],), "what is not needed still runs"
    gone = {each: Slot(Daemon("", ()), Phase.ENDED, 0.0) for each in running}
    assert mps_plan.admitted(gone, [*greedy, *modest], list(gone), 4) == (*greedy[5:7], *modest)
    assert mps_plan.admitted(gone, [*greedy, *modest], [modest[1].folder], 1) == (modest[1],)
