"""Tickets on their way into a broker: kombu's own in this process, or one that is not there."""

import socket
from threading import Event

import pytest
from kombu.connection import Connection

from gpu_orchestrator.adapters.broker import publisher as publishing
from gpu_orchestrator.adapters.broker.address import Broker
from gpu_orchestrator.adapters.broker.publisher import Publisher
from gpu_orchestrator.adapters.broker.queues import queue_for
from gpu_orchestrator.api.tickets import INFERENCE, Ticket

PATIENCE_S = 20.0


def test_ticket_has_no_parameters_and_is_json() -> None:
    sender = Publisher(Broker("memory://", "disabled://"))
    sender.start()
    sender.publish("gpu1", Ticket("a" * 32, 3, 7), "echo")
    connection = Connection("memory://")  # type: ignore[no-untyped-call]
    with connection, connection.SimpleQueue(queue_for("gpu1")) as queue:  # type: ignore[no-untyped-call]
        message = queue.get(timeout=PATIENCE_S)
        message.ack()
    sender.close()
    assert message.content_type == "application/json"
    assert message.payload[:2] == [[], {"task": "a" * 32, "attempt": 3, "epoch": 7}]
    assert message.headers["task"] == INFERENCE
    assert message.headers["id"] == f"{'a' * 32}.3"


def test_tickets_that_no_broker_takes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "TRIED_S", 0.0)
    lost = Event()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        sender = Publisher(Broker(f"redis://127.0.0.1:{closed.getsockname()[1]}/0", "disabled://"), lost.set)
        sender.start()
        sender.publish("gpu1", Ticket("a", 1, 1), "echo")
        assert lost.wait(PATIENCE_S)
        assert sender.trouble
        sender.close()
