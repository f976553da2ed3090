"""When a runner sends the partial results of its task."""

import time

import pytest

from gpu_orchestrator.apps.worker import frames
from gpu_orchestrator.apps.worker.runners import values


def test_pace_delays_neither_the_first_value_of_a_task_nor_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "PACE_S", 3600.0)
    sent: list[tuple[str, int, int]] = []

    def take(frame: frames.Sent) -> None:
        sent.append((frame.task, frame.at, len(frame.values)))
        channel.taken((frame.task, frame.attempt), frame.at + len(frame.values))

    channel = values.Values(take)
    for task in ("a", "b"):
        key = (task, 1)
        channel.begin(key)
        channel.put(key, b"1")
        while not any(each[0] == task for each in sent):
            time.sleep(0.001)
        channel.put(key, b"2")
        channel.put(key, b"3")
        channel.drain(lambda: False)
    assert sent == [("a", 0, 1), ("a", 1, 2), ("b", 0, 1), ("b", 1, 2)]
