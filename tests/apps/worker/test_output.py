"""What a runner sends of the text that tasks print, in a real runner: each text once, with its own task."""

import asyncio
import re
from pathlib import Path
from typing import cast

import pytest

from gpu_orchestrator.apps.worker import frames
from gpu_orchestrator.apps.worker.frames import Options
from gpu_orchestrator.apps.worker.runners import output
from tests.support import worker_functions
from tests.support.runners import RunnerClient, running

pytestmark = pytest.mark.real

NAMES = (
    "counts",
    "destroys",
    "prints_before_it_sends",
    "prints_in_between",
    "fail",
    "fails_in_turn",
    "floods_forever",
    "forks",
    "has_thread",
    "is_temporary",
    "leaves_behind",
    "names_odd_file",
    "says",
    "says_and_crashes",
    "says_all_ways",
    "uses_stdout",
)
OPTIONS = Options(functions={name: f"tests.support.worker_functions:{name}" for name in NAMES})
FILE = worker_functions.__file__


async def call(client: RunnerClient, function: str, task: str = "t", **arguments: object) -> object:
    return await client.result("python", {"function": function, "arguments": arguments}, task=task)


def raw(client: RunnerClient) -> str:
    """Return what came through the pipe."""
    return "".join(each for each in client.received if isinstance(each, str))


async def test_unfinished_line_stays_with_its_task() -> None:
    async with running(OPTIONS) as client:
        await call(client, "says", "a", text="half")
        await call(client, "says", "b", text="whole\n")
        assert (client.printed("a"), client.printed("b")) == ("half", "whole\n")


async def test_all_text_of_a_task_comes_before_its_outcome() -> None:
    async with running(OPTIONS) as client:
        await call(client, "says_all_ways", "a", name="A")
        assert client.printed("a") == "A-print A-bytes"
        kinds = [type(frame) for frame in client.received]
        assert kinds.index(frames.Ended) == len(kinds) - 1
        for way in ("write", "printf", "child", "original"):
            assert f"A-{way} " in raw(client)


async def test_text_of_a_thread_left_behind_belongs_to_no_task() -> None:
    async with running(OPTIONS) as client:
        await call(client, "leaves_behind", "a", name="A", seconds=2)
        await call(client, "counts", "b", lines=20, pause_s=0.01)
        await call(client, "has_thread", "c", name="C")
        assert client.printed("b") == "".join(f"line {number}\n" for number in range(20))
        assert client.printed("c") == "C-own-thread\n"
        assert "A-thread\n" in client.printed("")
        ended = [await client.receive(frames.Ended, task) for task in "abc"]
        assert all(frame.left_behind for frame in ended)


async def test_new_thread_with_the_number_of_an_old_one_prints_for_its_task() -> None:
    async with running(OPTIONS) as client:
        for number in range(20):
            await call(client, "has_thread", f"t{number}", name=f"T{number}")
            assert client.printed(f"t{number}") == f"T{number}-own-thread\n"
            assert not (await client.receive(frames.Ended, f"t{number}")).left_behind


async def test_forked_child_prints_to_the_pipe_and_sends_nothing_twice() -> None:
    async with running(OPTIONS) as client:
        await call(client, "forks", name="F")
        assert client.printed() == "F-before\nF-unsent"
        assert raw(client) == "F-in-child\n"


async def test_line_before_a_crash_is_sent() -> None:
    async with running(OPTIONS) as client:
        client.run("python", {"function": "says_and_crashes"})
        evidence = await client.wait_gone()
        assert client.printed() == "about to crash\n"
        assert "killed by SIGSEGV" in evidence


async def test_standard_output_is_a_file_and_is_put_back() -> None:
    async with running(OPTIONS) as client:
        used = await call(client, "uses_stdout", "a")
        assert used == {"encoding": "utf-8", "is_tty": False, "descriptor": 1}
        assert client.printed("a") == "a\nb\n€\ufffd?\n"
        await call(client, "says", "b", text="back\n")
        assert client.printed("b") == "back\n"


async def test_many_short_writes_share_frames_and_a_long_one_is_split() -> None:
    async with running(OPTIONS) as client:
        await call(client, "counts", "a", lines=20_000, pause_s=0)
        assert client.printed("a") == "".join(f"line {number}\n" for number in range(20_000))
        many = [f for f in client.received if isinstance(f, frames.Printed)]
        assert len(many) < 1000
        await call(client, "says", "b", text="é" * 300_000)
        assert client.printed("b") == "é" * 300_000
        assert max(len(f.text) for f in client.received if isinstance(f, frames.Printed)) <= 2 * output.FULL


async def test_destructors_may_print_anywhere() -> None:
    async with running(OPTIONS) as client:
        await call(client, "destroys", count=3000)
        assert client.printed().count("x") == 3000 * 1000


async def test_text_may_be_printed_while_text_is_being_sent() -> None:
    async with running(OPTIONS) as client:
        await call(client, "prints_in_between", lines=500)
        assert client.printed().count("x") == 500 * 1000
        assert client.printed().count("between\n") > 5000


async def test_much_text_may_be_printed_before_text_is_being_sent() -> None:
    """The thread must not wait for the sender, which waits for the lock that the thread has."""
    async with running(OPTIONS) as client:
        await call(client, "prints_before_it_sends", characters=output.MOST_WAITING)
        assert client.printed().count("x") == 2 * output.MOST_WAITING


async def test_soft_limit_interrupts_a_flood_between_two_frames() -> None:
    """The agent does not read for a while, so the runner waits in the middle of sending."""
    async with running(OPTIONS) as client:
        client.run("python", {"function": "floods_forever"})
        await client.receive(frames.Printed)
        channel = cast(asyncio.Transport, client.runner._channel)
        channel.pause_reading()
        pid = (await client.receive(frames.Ready)).pid
        await blocked(pid)
        client.runner.send(frames.SoftLimit("t", 1))
        await blocked(pid)
        channel.resume_reading()
        assert (await client.receive(frames.Erred)).error == "SoftLimitReached"
        assert client.printed().endswith(
            "SoftLimitReached: the task ran past its soft time limit; submit it with a longer timeout\n"
        )
        assert await client.result("echo", 1, task="next") == 1


@pytest.mark.parametrize(
    ("task_type", "parameters", "text"),
    [
        pytest.param(
            "python",
            {"function": "fail", "arguments": {"message": "no luck"}},
            f'Traceback (most recent call last):\n  File "{FILE}", line N, in fail\n'
            "    raise RuntimeError(message)\nRuntimeError: no luck\n",
            id="begins with the user's code",
        ),
        pytest.param(
            "python",
            {"function": "fails_in_turn", "arguments": {"message": "lost"}},
            f'Traceback (most recent call last):\n  File "{FILE}", line N, in fails_in_turn\n'
            '    fail("the first error")\n'
            f'  File "{FILE}", line N, in fail\n'
            "    raise RuntimeError(message)\nRuntimeError: the first error\n\n"
            "The above exception was the direct cause of the following exception:\n\n"
            f'Traceback (most recent call last):\n  File "{FILE}", line N, in fails_in_turn\n'
            "    raise Speechless(message) from error\n"
            "tests.support.worker_functions.Speechless: <exception str() failed>\n",
            id="a chain, and an error that cannot be printed",
        ),
        pytest.param(
            "python",
            {"function": "is_temporary"},
            f'Traceback (most recent call last):\n  File "{FILE}", line N, in is_temporary\n'
            '    raise Temporary("busy")\ngpu_orchestrator.apps.worker.task.Temporary: busy\n',
            id="temporary",
        ),
        pytest.param(
            "python",
            {"function": "names_odd_file"},
            f'Traceback (most recent call last):\n  File "{FILE}", line N, in names_odd_file\n'
            '    fail("cannot read " + os.fsdecode(b"caf\\xe9"))\n'
            f'  File "{FILE}", line N, in fail\n    raise RuntimeError(message)\n'
            "RuntimeError: cannot read caf?\n",
            id="a name that is not UTF-8",
        ),
        pytest.param(
            "sleep",
            {"seconds": -1},
            "BadParameters: parameters of a 'sleep' task: seconds is -1; give at least 0\n",
            id="bad parameters",
        ),
        pytest.param(
            "sleep",
            {"second": 1},
            "BadParameters: parameters of a 'sleep' task: unknown field second; known: seconds, progress\n",
            id="unknown parameter",
        ),
        pytest.param(
            "nonsense",
            {},
            "gpu_orchestrator.apps.worker.handlers.find.UnknownTaskType: unknown task type 'nonsense'; this "
            "worker knows: command, echo, http, python, sleep, vram\n",
            id="no code of the user",
        ),
    ],
)
async def test_failure_is_in_the_text(task_type: str, parameters: object, text: str) -> None:
    async with running(OPTIONS) as client:
        await client.error(task_type, parameters)
        assert without_numbers(client.printed()) == text


async def blocked(pid: int) -> None:
    """Wait until a process uses no more processor time: it waits for something."""
    before, now = -1, 0
    async with asyncio.timeout(30):
        while before != now:
            await asyncio.sleep(0.1)
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # noqa: ASYNC240
            before, now = now, int(fields[11]) + int(fields[12])


def without_numbers(text: str) -> str:
    """Return a traceback without the numbers of lines, and without marks below them."""
    lines = [line for line in text.split("\n") if not line or line.strip(" ^~")]
    return re.sub(r"line \d+", "line N", "\n".join(lines))
