"""A scripted server and real workers that join it; every test checks at its end that no process is left."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.patience import PATIENCE_S
from tests.support.scripted_server import Peer, serving
from tests.support.workers import Worker, gone_within

NewWorker = Callable[..., Worker]


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with serving() as running:
        yield running


@pytest.fixture
def new_worker(peer: Peer, tmp_path: Path) -> Iterator[NewWorker]:
    """Return `new_worker("--simulate", "2")`, which starts a worker that joins the peer. It is killed at the
    end."""
    started: list[Worker] = []

    def start(*options: str, before: Sequence[str] = (), program: Sequence[str] = (warm.PROGRAM,)) -> Worker:
        simulation = ("--simulation", str(tmp_path / "gpus")) if "--simulation" not in options else ()
        log, given = tmp_path / "worker.log", (*simulation, *options)
        started.append(Worker(peer.url, log, *given, before=before, program=program))
        return started[-1]

    yield start
    for worker in started:
        worker.close()
        gone_within(worker, PATIENCE_S)
        assert "Traceback" not in worker.log.read_text()
