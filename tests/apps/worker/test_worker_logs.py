"""The logs that a real worker sends: all that a task prints, in every way, and nothing of any other task."""

import asyncio
import time
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import session
from tests.apps.worker.conftest import NewWorker
from tests.support.fleet import eventually
from tests.support.scale import Scale
from tests.support.scripted_server import Peer

pytestmark = pytest.mark.real

NAMES = (
    "counts",
    "fail",
    "floods",
    "has_thread",
    "leaves_behind",
    "prints",
    "says",
    "says_all_ways",
    "says_and_crashes",
    "says_both",
    "shows_bar",
)
FUNCTIONS = tuple(
    part for name in NAMES for part in ("--function", f"{name}=tests.support.worker_functions:{name}")
)


def python(function: str, **arguments: Any) -> dict[str, Any]:
    return {"function": function, "arguments": arguments}


def kinds(peer: Peer, task: str) -> list[str]:
    return [type(m).__name__ for m in peer.received if getattr(m, "task", "") == task]


async def test_unfinished_line_does_not_reach_the_next_task(peer: Peer, new_worker: NewWorker) -> None:
    """A progress bar without a newline at its end, then another task in the same runner, perhaps of another
    owner."""
    new_worker("--function", "bar=tests.support.worker_functions:half_a_bar", *FUNCTIONS)
    await peer.receive(session.Hello)
    await peer.assign("a", "python", python("bar", secret="of a"))
    await peer.receive(session.Done, "a")
    assert peer.log("a") == "100% of a\n" or peer.log("a") == "100% of a"
    await peer.assign("b", "python", python("prints"))
    await peer.receive(session.Done, "b")
    assert peer.log("b") == "from print\n"
    lines = [each.line for each in peer.received if isinstance(each, session.Progress) and each.task == "b"]
    assert all("of a" not in line for line in lines)


async def test_log_has_the_text_and_the_traceback_and_comes_before_the_outcome(
    peer: Peer, new_worker: NewWorker
) -> None:
    new_worker(*FUNCTIONS)
    await peer.receive(session.Hello)
    await peer.assign("t", "python", python("prints"))
    await peer.receive(session.Done, "t")
    assert peer.log("t") == "from print\n"
    assert kinds(peer, "t")[-2:] == ["Log", "Done"]
    assert (await peer.receive(session.Progress, "t")).line == "from print"
    await peer.assign("f", "python", python("fail", message="no luck"))
    await peer.receive(session.Failed, "f")
    assert peer.log("f").startswith("Traceback (most recent call last):\n  File ")
    assert peer.log("f").endswith("RuntimeError: no luck\n")
    await peer.assign("silent")
    await peer.receive(session.Done, "silent")
    assert set(kinds(peer, "silent")) <= {"Started", "Done"}


async def test_older_server_gets_progress_and_no_log(peer: Peer, new_worker: NewWorker) -> None:
    peer.log_kb = 0
    new_worker(*FUNCTIONS)
    await peer.receive(session.Hello)
    await peer.assign("t", "python", python("counts", lines=3, pause_s=0.3))
    await peer.receive(session.Done, "t")
    assert "Log" not in kinds(peer, "t")
    lines = [m.line for m in peer.received if isinstance(m, session.Progress)]
    assert lines == ["line 0", "line 1", "line 2"]


async def test_progress_bar_is_progress_and_one_line_of_the_log(peer: Peer, new_worker: NewWorker) -> None:
    new_worker(*FUNCTIONS)
    await peer.receive(session.Hello)
    await peer.assign("t", "python", python("shows_bar", steps=50))
    await peer.receive(session.Done, "t")
    assert peer.log("t") == f"100%|{'#' * 50}\n"
    lines = [m.line for m in peer.received if isinstance(m, session.Progress)]
    assert lines[-1] == f"100%|{'#' * 50}"
    assert 3 <= len(lines) <= 50, "paced"


async def test_output_past_python_is_in_the_log(peer: Peer, new_worker: NewWorker) -> None:
    new_worker(*FUNCTIONS, "--allow-command")
    await peer.receive(session.Hello)
    await peer.assign("t", "python", python("says_all_ways", name="A"))
    await peer.receive(session.Done, "t")
    assert sorted(peer.log("t").split()) == [
        "A-bytes",
        "A-child",
        "A-original",
        "A-print",
        "A-printf",
        "A-write",
    ]
    await peer.assign("c", "command", {"arguments": ["printf", r"1%%\r2%%\ndone"]})
    done = await peer.receive(session.Done, "c")
    assert peer.log("c") == "2%\ndone\n"
    assert msgspec.json.decode(done.result)["output"] == ["2%", "done"]


async def test_no_text_crosses_into_the_next_task_on_a_runner(peer: Peer, new_worker: NewWorker) -> None:
    """Unfinished lines, and a thread, a child and an orphan that print on in every way."""
    worker = new_worker(*FUNCTIONS)
    await peer.receive(session.Hello)
    await peer.assign("a", "python", python("says_all_ways", name="A"))
    await peer.receive(session.Done, "a")
    await peer.assign("b", "python", python("leaves_behind", name="B", seconds=3))
    await peer.receive(session.Done, "b")
    await peer.assign("c", "python", python("counts", lines=20, pause_s=0.05))
    await peer.receive(session.Done, "c")
    await peer.assign("d", "python", python("has_thread", name="D"))
    await peer.receive(session.Done, "d")
    assert set(peer.log("a").replace("A-", "").split()) == {
        "print",
        "bytes",
        "write",
        "printf",
        "child",
        "original",
    }
    assert set(peer.log("b").split("\n")) >= {"B leaves", ""}
    assert "A-" not in peer.log("b")
    assert peer.log("c") == "".join(f"line {number}\n" for number in range(20))
    assert peer.log("d") == "D-own-thread\n"

    async def has_strays() -> bool:
        text = worker.log.read_text()
        return all(f"B-{what}" in text for what in ("thread", "thread-raw", "process"))

    await eventually(has_strays, 60)


async def test_orphan_of_an_earlier_task_prints_into_no_log(peer: Peer, new_worker: NewWorker) -> None:
    """A process in the background of a shell lost its parent: the runner does not know of it."""
    new_worker(*FUNCTIONS, "--allow-command")
    await peer.receive(session.Hello)
    script = "(for i in $(seq 200); do echo SECRET >&3; sleep 0.01; done) >/dev/null 2>&1 </dev/null 3>&1 &"
    await peer.assign("a", "python", python("says", text=""))
    await peer.receive(session.Done, "a")
    await peer.assign(
        "b", "command", {"arguments": ["sh", "-c", script.replace("3>&1", "3>/proc/$PPID/fd/1")]}
    )
    await peer.receive(session.Done, "b")
    await peer.assign("c", "python", python("says_all_ways", name="C"))
    await peer.receive(session.Done, "c")
    await peer.assign("d", "python", python("counts", lines=10, pause_s=0.02))
    await peer.receive(session.Done, "d")
    assert "SECRET" not in peer.log("c") + peer.log("d")
    assert "C-print" in peer.log("c")


async def test_no_text_crosses_between_tasks_that_are_queued_ahead(
    peer: Peer, new_worker: NewWorker, scale: Scale
) -> None:
    """Quick tasks are queued at a runner ahead of time. What they print through Python is known; what they
    print past it is attributed only when it is certain."""
    new_worker(*FUNCTIONS, "--max-concurrent", "64")
    await peer.receive(session.Hello)
    for number in range(10):
        await peer.assign(f"warm{number}")
        await peer.receive(session.Done, f"warm{number}")
    count = scale(test=200, accept=5000)
    tasks = {f"t{number}": f"T{number}" for number in range(count)}
    assigns = [
        session.Assign(task, 1, "python", msgspec.Raw(msgspec.json.encode(python("says_both", name=name))))
        for task, name in tasks.items()
    ]
    for at in range(0, count, 50):
        await peer.send(*assigns[at : at + 50])
        for assign in assigns[at : at + 50]:
            await peer.receive(session.Done, assign.task)
    attributed = 0
    for task, name in tasks.items():
        words = peer.log(task).split()
        assert f"{name}-print" in words
        assert set(words) <= {f"{name}-print", f"{name}-write"}
        attributed += f"{name}-write" in words
    assert attributed > count / 2, "a runner that prints past Python gets one task at a time"


async def test_log_of_a_dead_runner_has_its_last_words(peer: Peer, new_worker: NewWorker) -> None:
    new_worker(*FUNCTIONS)
    await peer.receive(session.Hello)
    await peer.assign("before", "python", python("says_all_ways", name="BEFORE"))
    await peer.receive(session.Done, "before")
    await peer.assign("t", "python", python("says_and_crashes"))
    died = await peer.receive(session.RunnerDied, "t")
    log = peer.log("t")
    assert log.startswith("about to crash\n")
    assert "Fatal Python error: Segmentation fault" in log
    assert log.endswith("killed by SIGSEGV\n")
    assert "Segmentation fault" in died.evidence
    assert "BEFORE" not in died.evidence + log


async def test_log_is_complete_over_a_lost_connection(peer: Peer, new_worker: NewWorker) -> None:
    new_worker(*FUNCTIONS)
    await peer.receive(session.Hello)
    await peer.assign("t", "python", python("counts", lines=400, pause_s=0.01))
    await peer.receive(session.Log, "t", after=2)
    await peer.drop()
    await peer.receive(session.Hello, after=1)
    await peer.receive(session.Done, "t")
    assert peer.log("t") == "".join(f"line {number}\n" for number in range(400))


async def test_log_of_an_unacknowledged_outcome_is_sent_again_before_it(
    peer: Peer, new_worker: NewWorker
) -> None:
    new_worker(*FUNCTIONS)
    await peer.receive(session.Hello)
    peer.acks = False
    await peer.assign("t", "python", python("prints"))
    await peer.receive(session.Done, "t")
    peer.acks = True
    await peer.drop()
    await peer.receive(session.Done, "t", after=1)
    assert kinds(peer, "t")[-2:] == ["Log", "Done"]
    assert peer.log("t") == "from print\n"
    await peer.drop()
    await peer.receive(session.Hello, after=2)
    await peer.assign("next")
    await peer.receive(session.Done, "next")
    assert kinds(peer, "t").count("Done") == 2


@pytest.mark.parametrize("how", ["print", "write", "child"])
async def test_flood_is_paced_and_bounded_and_disturbs_no_other_task(
    peer: Peer, new_worker: NewWorker, scale: Scale, how: str
) -> None:
    new_worker(*FUNCTIONS, "--max-concurrent", "4", "--processes", "2")
    await peer.receive(session.Hello)
    await peer.assign("warm", "sleep", {"seconds": 0.1})
    await peer.assign("warm2", "sleep", {"seconds": 0.1})
    await peer.receive(session.Done, "warm")
    await peer.receive(session.Done, "warm2")
    megabytes = scale(test=10, accept=200)
    await peer.assign("flood", "python", python("floods", megabytes=megabytes, how=how))
    beside, began = 0, time.monotonic()
    while "Failed" not in kinds(peer, "flood"):
        await peer.assign(f"beside{beside}")
        await peer.receive(session.Done, f"beside{beside}", within_s=scale(test=30, accept=2))
        beside += 1
        await asyncio.sleep(0.02)
    took_s = time.monotonic() - began
    pieces = [m for m in peer.received if isinstance(m, session.Log) and m.task == "flood"]
    size = sum(len(piece.text) for piece in pieces)
    assert size <= (256 << 10) * 2 + took_s * (64 << 10) + (64 << 10), "a burst, a rate, and the rest"
    assert pieces[-1].text.endswith(f"RuntimeError: enough after {megabytes * 10_000} lines\n")
    whole = {piece.at: piece.text for piece in pieces}
    assert all(at % 100 == 0 for at in whole if at < megabytes * 1_000_000), "cut between lines"
    assert pieces[-1].at + len(pieces[-1].text) > megabytes * 1_000_000
    assert beside > 0
