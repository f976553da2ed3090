"""The tickets of one worker: sent, sent again, redeemed once."""

import pytest

from gpu_orchestrator.api import session
from gpu_orchestrator.api.tickets import Ticket
from gpu_orchestrator.apps.manager.workers.tickets import AGAIN_S, UNREAD_S, Celery, Tickets

A = ("a", 1)
OWN = frozenset({A})


class Sent:
    """Takes tickets in place of a broker."""

    def __init__(self) -> None:
        self.tickets: list[tuple[str, Ticket, str]] = []
        self.of_worker = Tickets("gpu1", 7, Celery(lambda *sent: self.tickets.append(sent), lambda _: None))
        self.of_worker.issue(session.Assign(*A, "echo"), 0.0)


@pytest.fixture
def sent() -> Sent:
    return Sent()


def redeem(sent: Sent, attempt: int = 1, epoch: int = 7) -> str:
    return sent.of_worker.redeem(session.Redeem(1, "a", attempt, epoch), OWN)


def test_ticket_names_the_attempt_and_the_epoch(sent: Sent) -> None:
    assert sent.tickets == [("gpu1", Ticket("a", 1, 7), "echo")]


def test_ticket_is_redeemed_once(sent: Sent) -> None:
    assert (redeem(sent), redeem(sent)) == ("", "again")


@pytest.mark.parametrize(("attempt", "epoch"), [(2, 7), (0, 7), (1, 6), (1, 8)])
def test_ticket_of_another_attempt_or_epoch_is_old(sent: Sent, attempt: int, epoch: int) -> None:
    assert redeem(sent, attempt, epoch) == "old"
    assert redeem(sent) == ""


def test_lost_ticket_is_sent_again_and_then_given_back(sent: Sent) -> None:
    assert sent.of_worker.again(AGAIN_S) == []
    assert len(sent.tickets) == 1
    for at in (AGAIN_S + 1, AGAIN_S + 2):
        assert sent.of_worker.again(at) == []
    assert len(sent.tickets) == 2, "once in AGAIN_S"
    assert sent.of_worker.again(UNREAD_S + 1) == [A]
    assert sent.of_worker.again(UNREAD_S + 2) == []
    assert redeem(sent) == "again", "the task may run elsewhere by now"


def test_ticket_counts_again_if_the_store_did_not_answer(sent: Sent) -> None:
    redeem(sent)
    sent.of_worker.take_back(A)
    assert sent.of_worker.again(AGAIN_S + 1) == []
    assert len(sent.tickets) == 2
    assert redeem(sent) == ""


@pytest.mark.parametrize("is_delivered", [True, False])
def test_redeemed_ticket_is_not_sent_again(sent: Sent, is_delivered: bool) -> None:
    redeem(sent)
    if is_delivered:
        sent.of_worker.delivered(session.Assign(*A, "echo"))
    assert sent.of_worker.again(UNREAD_S + 1) == []
    assert len(sent.tickets) == 1


def test_ended_attempt_leaves_nothing_behind(sent: Sent) -> None:
    redeem(sent)
    sent.of_worker.ended(A)
    assert not sent.of_worker.redeemed


@pytest.mark.parametrize("has_elsewhere", [True, False])
def test_assignment_keeps_what_the_dispatcher_said(sent: Sent, has_elsewhere: bool) -> None:
    sent.of_worker.issue(session.Assign("b", 1, "echo", has_elsewhere=has_elsewhere), 0.0)
    stored = session.Assign("b", 1, "echo")
    assert sent.of_worker.delivered(stored).has_elsewhere == has_elsewhere
