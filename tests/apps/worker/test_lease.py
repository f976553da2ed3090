"""The lease never ends later at the worker than at the manager."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.apps.worker.session.lease import Lease


def lease(sent_at: float = 100.0) -> Lease:
    made = Lease()
    made.begin(10.0, sent_at)
    return made


def test_lease_is_over_before_the_first_grant() -> None:
    assert Lease().is_over(0.0)


def test_lease_ends_a_margin_before_the_managers() -> None:
    assert not lease().is_over(108.4)
    assert lease().is_over(108.5)


def test_renewal_counts_from_when_it_was_sent() -> None:
    ours = lease()
    number = ours.renewal_sent(103.0)
    assert ours.renewal_granted(number)
    assert ours.until == 111.5


def test_grant_of_an_older_connection_is_ignored() -> None:
    ours = lease()
    number = ours.renewal_sent(103.0)
    ours.begin(10.0, 104.0)
    assert not ours.renewal_granted(number)
    assert ours.until == 112.5


def test_planned_end_of_the_server_extends_the_lease_from_the_last_grant() -> None:
    ours = lease()
    ours.renewal_granted(ours.renewal_sent(103.0))
    ours.renewal_sent(106.0)
    ours.hold(60.0)
    assert ours.until == 103.0 + 60.0 - ours.margin_s, "the manager counts from a later moment"


def test_hold_never_shortens_the_lease_and_the_next_session_starts_a_usual_one() -> None:
    ours = lease()
    ours.hold(5.0)
    assert ours.until == 108.5
    ours.hold(60.0)
    ours.begin(10.0, 120.0)
    assert ours.until == 128.5


def test_unanswered_renewal_is_measured() -> None:
    ours = lease()
    first, second = ours.renewal_sent(103.0), ours.renewal_sent(106.0)
    assert ours.unanswered_s(107.0) == 4.0
    ours.renewal_granted(first)
    assert ours.unanswered_s(107.0) == 1.0
    ours.renewal_granted(second)
    assert ours.unanswered_s(107.0) == 0.0


@given(st.lists(st.tuples(st.floats(0.01, 3.0), st.floats(0.0, 2.0), st.booleans()), max_size=30))
def test_lease_ends_before_the_managers_for_any_renewals(renewals: list[tuple[float, float, bool]]) -> None:
    """This holds for any grants and delays: the manager receives a renewal no earlier than it was sent."""
    ours, now, at_server = lease(0.0), 0.0, 10.0
    for wait_s, travel_s, is_answered in renewals:
        now += wait_s
        number = ours.renewal_sent(now)
        at_server = max(at_server, now + travel_s + 10.0)
        if is_answered:
            ours.renewal_granted(number)
        assert ours.until + ours.margin_s <= at_server
