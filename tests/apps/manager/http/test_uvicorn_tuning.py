"""The head of an answer leaves with its body, and reading stops only for who takes nothing."""

import asyncio
from typing import cast

import pytest

from gpu_orchestrator.apps.manager.http.uvicorn_tuning import CoalescingTransport

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Written:
    """Stands for the socket: each item is one system call."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.is_closed = False
        self.pauses: list[str] = []

    def pause_reading(self) -> None:
        self.pauses.append("pause")

    def resume_reading(self) -> None:
        self.pauses.append("resume")

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
async def both() -> tuple[CoalescingTransport, Written]:
    written = Written()
    return CoalescingTransport(cast(asyncio.Transport, written), asyncio.get_running_loop()), written


async def test_head_and_body_go_together(both: tuple[CoalescingTransport, Written]) -> None:
    joined, written = both
    joined.write(HEAD)
    joined.write(b"ok")
    assert written.calls == [HEAD + b"ok"]
    await asyncio.sleep(0)
    assert written.calls == [HEAD + b"ok"], "nothing is left to be written"


async def test_a_head_whose_body_comes_later_does_not_wait_for_it(
    both: tuple[CoalescingTransport, Written],
) -> None:
    joined, written = both
    joined.write(HEAD)
    assert written.calls == []
    await asyncio.sleep(0)
    assert written.calls == [HEAD]
    joined.write(b"event: one\n\n")
    assert written.calls == [HEAD, b"event: one\n\n"]


async def test_what_is_no_head_goes_at_once(both: tuple[CoalescingTransport, Written]) -> None:
    joined, written = both
    joined.write(b"\x82\x03abc")
    assert written.calls == [b"\x82\x03abc"]


async def test_a_head_is_not_lost_when_the_connection_is_closed(
    both: tuple[CoalescingTransport, Written],
) -> None:
    joined, written = both
    joined.write(HEAD)
    joined.close()
    assert written.calls == [HEAD]
    assert written.is_closed
    joined.write(HEAD)
    await asyncio.sleep(0)
    assert written.calls == [HEAD], "to a closed one nothing is written"
    assert joined.is_closing()


async def test_a_pause_that_is_over_in_the_next_turn_is_none(
    both: tuple[CoalescingTransport, Written],
) -> None:
    joined, written = both
    taken = asyncio.get_running_loop().call_soon(joined.resume_reading)
    joined.pause_reading()
    await asyncio.sleep(0)
    assert not taken.cancelled()
    assert written.pauses == []


async def test_who_takes_nothing_stops_the_reading_until_he_does(
    both: tuple[CoalescingTransport, Written],
) -> None:
    joined, written = both
    joined.pause_reading()
    joined.pause_reading()
    await asyncio.sleep(0)
    assert written.pauses == ["pause"]
    joined.resume_reading()
    joined.resume_reading()
    assert written.pauses == ["pause", "resume"]


async def test_a_closed_connection_is_not_paused(both: tuple[CoalescingTransport, Written]) -> None:
    joined, written = both
    joined.pause_reading()
    joined.close()
    await asyncio.sleep(0)
    assert written.pauses == []
