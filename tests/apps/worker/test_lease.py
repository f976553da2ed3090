"""The lease never ends later here than at the server."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.apps.worker.session.lease import Lease


def lease(sent_at: float = 100.0) -> Lease:
    made = Lease()
    made.begin(10.0, sent_at)
    return made


def test_before_the_first_grant_nothing_is_ours() -> None:
    assert Lease().is_over(0.0)


def test_it_ends_a_margin_before_the_servers() -> None:
    assert not lease().is_over(108.4)
    assert lease().is_over(108.5)


def test_a_renewal_counts_from_when_it_was_sent() -> None:
    ours = lease()
    number = ours.asked(103.0)
    assert ours.granted(number)
    assert ours.until == 111.5


def test_an_answer_to_an_older_connection_prolongs_nothing() -> None:
    ours = lease()
    number = ours.asked(103.0)
    ours.begin(10.0, 104.0)
    assert not ours.granted(number)
    assert ours.until == 112.5


def test_an_unanswered_renewal_is_noticed() -> None:
    ours = lease()
    first, second = ours.asked(103.0), ours.asked(106.0)
    assert ours.unanswered_s(107.0) == 4.0
    ours.granted(first)
    assert ours.unanswered_s(107.0) == 1.0
    ours.granted(second)
    assert ours.unanswered_s(107.0) == 0.0


@given(st.lists(st.tuples(st.floats(0.01, 3.0), st.floats(0.0, 2.0), st.booleans()), max_size=30))
def test_it_is_over_here_before_it_is_over_there(renewals: list[tuple[float, float, bool]]) -> None:
    """Whatever answers come back, in any delay: the server hears each renewal no earlier than it was sent."""
    ours, now, at_server = lease(0.0), 0.0, 10.0
    for wait_s, travel_s, is_answered in renewals:
        now += wait_s
        number = ours.asked(now)
        at_server = max(at_server, now + travel_s + 10.0)
        if is_answered:
            ours.granted(number)
        assert ours.until + ours.margin_s <= at_server
