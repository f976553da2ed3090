"""Tests that connections of strangers give way when there are too many."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.adapters import settings
from gpu_orchestrator.apps.manager.access.connections import ConnectionLimits, Connections, address_of

LIMITS = ConnectionLimits(most=8, strangers_per_address=3)


@dataclass(eq=False)
class Caller:
    address: str = "10.0.0.1"
    is_busy: bool = False
    is_known: bool = False
    evictions: list[str] = field(default_factory=list)

    def evict(self) -> None:
        self.evictions.append(self.address)


def test_stranger_of_a_full_address_takes_the_place_of_the_oldest_from_there() -> None:
    connections = Connections(LIMITS)
    other, first, second, third, new = Caller("other"), Caller(), Caller(), Caller(), Caller()
    assert all(connections.admit(each) for each in (other, first, second, third, new))
    assert [len(each.evictions) for each in (other, first, second, third, new)] == [0, 1, 0, 0, 0]
    assert connections.closed == {"room": 1}


def test_strangers_take_half_of_all_connections_at_most() -> None:
    connections = Connections(LIMITS)
    callers = [Caller(f"10.0.0.{number}") for number in range(6)]
    assert all(connections.admit(each) for each in callers)
    assert [len(each.evictions) for each in callers] == [1, 1, 0, 0, 0, 0]
    assert connections.strangers == 4


def test_known_callers_are_never_evicted_and_do_not_count_for_their_address() -> None:
    connections = Connections(LIMITS)
    known = [Caller() for _ in range(6)]
    for each in known:
        assert connections.admit(each)
        connections.recognise(each)
    for _ in range(100):
        assert connections.admit(Caller())
    assert not any(each.evictions for each in known)
    assert (connections.known, connections.strangers) == (6, 2)


def test_caller_is_refused_if_all_others_are_known_or_wait_for_an_answer() -> None:
    connections = Connections(ConnectionLimits(most=2, strangers_per_address=3))
    known, busy = Caller(), Caller(is_busy=True)
    assert connections.admit(known)
    connections.recognise(known)
    assert connections.admit(busy)
    assert not connections.admit(Caller())
    assert not busy.evictions


@given(st.lists(st.tuples(st.sampled_from("anlk"), st.integers(0, 30), st.booleans()), max_size=200))
def test_counts_hold_whatever_happens(steps: list[tuple[str, int, bool]]) -> None:
    connections, callers, inside = Connections(LIMITS), [Caller(str(n % 5)) for n in range(31)], set[int]()
    for what, number, is_busy in steps:
        caller = callers[number]
        if what == "a" and number not in inside:
            caller.is_busy, caller.is_known, caller.evictions = is_busy, False, []
            if connections.admit(caller):
                inside.add(number)
        elif what == "k" and number in inside:
            connections.recognise(caller)
        elif what == "l":
            connections.leave(caller)
            inside.discard(number)
        inside = {each for each in inside if not callers[each].evictions}
        strangers = [callers[each] for each in inside if not callers[each].is_known]
        assert (connections.strangers, connections.known) == (len(strangers), len(inside) - len(strangers))
        assert len(inside) <= LIMITS.most
        assert len(strangers) <= LIMITS.strangers
        for address in {each.address for each in strangers}:
            assert sum(each.address == address for each in strangers) <= LIMITS.strangers_per_address


@pytest.mark.parametrize(
    ("peername", "address"),
    [
        pytest.param(("192.0.2.7", 5000), "192.0.2.7", id="IPv4"),
        pytest.param(("2001:db8:1:2:3:4:5:6", 5000, 0, 0), "2001:db8:1:2::/64", id="IPv6 by its network"),
        pytest.param(("::ffff:192.0.2.7", 5000, 0, 0), "192.0.2.7", id="IPv4 on an IPv6 socket"),
        pytest.param(("fe80::1%eth0", 5000, 0, 0), "fe80::/64", id="link-local"),
        pytest.param("", "", id="unix socket"),
        pytest.param(None, "", id="unknown"),
    ],
)
def test_address(peername: Any, address: str) -> None:
    assert address_of(peername) == address


@pytest.mark.parametrize(
    ("open_files", "most"),
    [
        pytest.param(20_000, 4096, id="as configured"),
        pytest.param(1024, 768, id="few files"),
        pytest.param(64, 2, id="hardly any"),
    ],
)
def test_limit_on_open_files_bounds_connections(open_files: int, most: int) -> None:
    assert ConnectionLimits.of(settings.Settings(), open_files).most == most


def test_defaults_let_a_thousand_workers_and_a_thousand_watchers_join_at_once() -> None:
    limits = ConnectionLimits.of(settings.Settings(), 20_000)
    connections = Connections(limits)
    callers = [Caller("proxy" if number % 2 else "nat") for number in range(2000)]
    assert all(connections.admit(each) for each in callers)
    assert not any(each.evictions for each in callers)
