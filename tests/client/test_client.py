"""Both clients against a running `up` whose worker serves two modules of tasks."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from controlplane.cluster import free_port
from examples.python_tasks import Score, shout, train
from gpu_orchestrator import AsyncClient, Call, Client
from gpu_orchestrator.client import (
    NotAllowed,
    NotFound,
    Refused,
    TaskCancelled,
    TaskFailed,
    TimedOut,
    Unreachable,
    blocking,
    dial,
    functions,
)
from tests.support import documents, worker_tasks
from tests.support.command_line import User, serving
from tests.support.operator_process import eventually
from tests.support.paths import ROOT
from tests.support.worker_tasks import (
    copies,
    counts,
    counts_too,
    fails,
    large,
    leaves,
    lies,
    nightly,
    on_gpu,
    total,
    twice,
    waits,
    yields_lies,
)

pytestmark = pytest.mark.real
TUTORIAL = "docs/tutorials/python.md"
APPS = ("examples.python_tasks", "tests.support.worker_tasks")
NO_GPU: Any = {"gpus": 0}
SOON_S = 60.0


def files() -> dict[str, str]:
    """Return the files of the tutorial."""
    found = re.findall(r"```python\n# (\S+)\n(.*?)```", (ROOT / TUTORIAL).read_text(), flags=re.DOTALL)
    return dict(found)


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """A running `up` whose worker serves these modules, and that of the tutorial from the current folder."""
    folder = tmp_path_factory.mktemp("up")
    for name, code in files().items():
        (folder / name).write_text(code)
    with serving(folder, "--app", "my_tasks", *(word for app in APPS for word in ("--app", app))) as user:
        yield user


@pytest.fixture
def _at_home(user: User, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Find the server as a program of this user does."""
    for name in ("API_KEY", "API_KEY_FILE", "GPU_ORCHESTRATOR_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "XDG_CONFIG_HOME", "DATA_DIR"):
        monkeypatch.setenv(name, user.environ[name])
    monkeypatch.chdir(user.folder)
    made: list[Client] = []
    monkeypatch.setattr(functions, "_default", made)
    yield
    for each in made:
        each.close()


@pytest.fixture
def client(_at_home: None) -> Iterator[Client]:
    with Client() as client:
        yield client


@pytest.fixture
async def awaiting(_at_home: None) -> Any:
    async with AsyncClient() as client:
        yield client


def test_function_runs_on_a_worker(client: Client) -> None:
    handle = train.submit(epochs=2)
    assert handle.result(SOON_S) == [Score(1, 0.5), Score(2, 0.25)]
    assert list(handle.logs()) == ["epoch 1", "epoch 2"]
    assert [each["model"] for each in handle.info().devices] == ["L4"]
    assert client.map(shout, ["a", "b"]) == ["A", "B"]
    assert client.handle(handle.id, train).result()[0] == Score(1, 0.5)
    assert client.handle(handle.id).result() == [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]


def test_tutorial_works_as_written(user: User) -> None:
    start, *programs = documents.run_by("tests/client/test_client.py", TUTORIAL)
    assert start.code == "gpu-orchestrator up --simulate 4 --app my_tasks\n"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    documents.type_in(programs, cwd=user.folder, env={**user.environ, "PATH": path}, patience_s=1.0)
    submit = ("my_tasks.train", "epochs=1", "--memory", "1GB", "--wait", "-q")
    assert json.loads(user.says("task", "submit", *submit)) == [{"epoch": 1, "loss": 0.5}]


def test_what_a_task_yields_is_followed(client: Client, user: User) -> None:
    handle = counts.submit(3)
    assert list(handle.stream()) == [0, 1, 2]
    assert handle.result(SOON_S) == "counted to 3"
    assert user.says("task", "stream", handle.id) == "0\n1\n2\n"
    assert user.says("task", "stream", handle.id, "--after", "1-2") == "2\n"
    texts = client.submit(counts, 2, size=3)
    texts.wait(SOON_S)
    assert user.says("task", "stream", texts.id, "--text") == "0 x1 x"
    failing = client.submit(counts_too, 5, fail_at=2)
    assert "the task is failed" in user.refused("task", "stream", failing.id)
    assert list(client.submit("echo", **NO_GPU).stream()) == []
    with pytest.raises(TaskFailed, match=r"BadResult: a value of .* is not what it says"):
        list(yields_lies.submit().stream())


def test_files_go_to_tasks_and_come_back(client: Client, user: User, tmp_path: Path) -> None:
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("one" * 1_000_000)
    two.write_text("two")
    first, second = client.upload(one), client.upload(two, name="../ü/zwei.txt")
    assert (first.name, first.bytes, second.name) == ("one.txt", 3_000_000, "zwei.txt")
    path, left = client.submit(copies, first, [second]).result(SOON_S)
    assert Path(path).name == "one.txt"
    assert (left.name, left.bytes, left.path) == ("all of it.txt", 3_000_003, "")
    eventually(lambda: not Path(path).parents[1].exists(), "the worker removes the files of an ended task")
    there = client.download(left, tmp_path)
    assert there == tmp_path / "all of it.txt"
    assert there.read_text() == "one" * 1_000_000 + "two"
    again, _ = client.submit(copies, left, []).result(SOON_S)
    assert Path(again).name == "all of it.txt"
    assert left.id in user.says("file", "list")
    assert user.says("file", "download", left.id, str(tmp_path / "again")) == f"{tmp_path / 'again'}\n"
    third = user.says("file", "upload", str(two), "-q").strip()
    user.says("file", "delete", third)
    assert f"there is no file {third}" in user.refused("file", "delete", third)
    assert (tmp_path / "again").read_bytes() == there.read_bytes()
    client.delete(second)
    with pytest.raises(NotFound, match=f"there is no file {second.id}"):
        client.download(second, tmp_path / "gone")
    with pytest.raises(Refused, match=f"parameters name the file {second.id}: .* has no such file"):
        client.submit(copies, second, [])
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "again",
        "all of it.txt",
        "one.txt",
        "two.txt",
    ]


@pytest.mark.parametrize("kind", ["link", "folder", "fifo"])
def test_task_leaves_nothing_but_files_of_its_own(client: Client, kind: str) -> None:
    with pytest.raises(TaskFailed, match=r"FileMissing: (what|the file that) the task leaves"):
        client.submit(leaves, kind).result(SOON_S)


async def test_files_go_and_come_awaited(awaiting: AsyncClient, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * 2_000_000)
    sent = await awaiting.upload(tmp_path / "data")
    _, left = await (await awaiting.submit(copies, sent, [])).result(SOON_S)
    assert (await awaiting.download(left, tmp_path / "back")).read_bytes() == b"x" * 2_000_000
    await awaiting.delete(left.id)


def test_thousand_tasks_come_back_in_order(client: Client) -> None:
    handles = client.batch(Call("echo", number, **NO_GPU) for number in range(1000))
    assert client.gather(handles, SOON_S) == list(range(1000))


def test_results_go_from_task_to_task(client: Client) -> None:
    parts = client.batch(total.call([number]) for number in range(5))
    both = client.submit(total, [each.output for each in parts])
    last = client.submit("echo", {"sum": both, "of": [total.name]}, **NO_GPU)
    assert last.result(SOON_S) == {"sum": 10, "of": ["tests.support.worker_tasks.total"]}
    assert last.info().depends_on == [both.id]
    broken = client.submit(fails, "broken")
    anyway = client.submit(total.options(on_failure="run"), [parts[4].output, broken.output])
    never = client.submit(total.options(depends_on=[broken, both.id]), [1])
    assert anyway.result(SOON_S) == 4
    with pytest.raises(TaskCancelled, match=f"task {broken.id}, on which it depends, failed"):
        never.result(SOON_S)
    with pytest.raises(TaskFailed, match=r"BadParameters: .*numbers\[0\]"):
        client.submit(total, [last.output]).result(SOON_S)


async def test_results_go_from_task_to_task_awaited(awaiting: AsyncClient) -> None:
    first = await awaiting.submit(total, [1, 2])
    assert await (await awaiting.submit(total, [first.output, 4])).result(SOON_S) == 7


def test_group_calls_back_once_all_have_ended(client: Client) -> None:
    calls = [twice.call(number) for number in range(5)]
    assert client.group(calls, then=total).result(SOON_S) == 20
    assert client.group([], then=total).result(SOON_S) == 0
    one_fails = [*calls, fails.call("broken")]
    with pytest.raises(TaskCancelled, match="on which it depends, failed"):
        client.group(one_fails, then=total).result(SOON_S)
    anyway = total.options(on_failure="run")
    assert client.group(one_fails, then=anyway).result(SOON_S) == 20
    with pytest.raises(ValueError, match="a group has at most 1000 tasks, and these are 1001"):
        client.group([twice.call(1)] * 1001, then=total)
    with pytest.raises(TypeError, match="decorate it with @task"):
        client.group([twice.call(1)], then=sum)  # type: ignore[arg-type]


async def test_group_and_schedules_awaited(awaiting: AsyncClient) -> None:
    group = await awaiting.group([twice.call(2)], then=total)
    assert await group.result(SOON_S) == 4
    added = await awaiting.schedules.add("awaited", "@daily", total.call([1]))
    assert await (await awaiting.schedules.run("awaited")).result(SOON_S) == 1
    assert added.name in [each.name for each in await awaiting.schedules.list()]
    await awaiting.schedules.delete("awaited")


def test_schedules_of_functions_and_of_calls(client: Client) -> None:
    (applied,) = client.schedules.apply(nightly)
    assert (applied.name, applied.schedule) == ("tests.support.worker_tasks.nightly", "0 3 * * *")
    assert (applied.timezone, applied.overlap, applied.status) == ("Europe/Berlin", "skip", "active")
    assert "T03:00:00+0" in applied.upcoming[0]
    assert client.schedules.apply(nightly.options(priority="low")) == [applied], "it is replaced"
    ran = client.schedules.run(applied.name)
    assert ran.result(SOON_S) == "good night"
    assert ran.info().labels["schedule"] == applied.name
    added = client.schedules.add("yearly", "@yearly", Call("echo", **NO_GPU))
    listed = [each.name for each in client.schedules.list() if each.name != "my_tasks.tidy"]
    assert listed == [applied.name, added.name]
    with pytest.raises(Refused, match="another schedule 'yearly'"):
        client.schedules.add("yearly", "@daily", Call("echo", **NO_GPU))
    assert client.schedules.pause("yearly").reason.startswith("paused by ")
    assert client.schedules.resume("yearly").status == "active"
    for name in ("yearly", applied.name):
        client.schedules.delete(name)
    with pytest.raises(NotFound, match="there is no schedule yearly"):
        client.schedules.get("yearly")
    with pytest.raises(TypeError, match="total has no schedule; decorate it"):
        client.schedules.apply(total)
    with pytest.raises(Refused, match="schedule: 'sometimes' has 1 fields"):
        client.schedules.add("bad", "sometimes", total.call([1]))


def test_first_that_ends_comes_first(client: Client, tmp_path: Path) -> None:
    first, second = (tmp_path / name for name in ("first", "second"))
    slow, quick = client.submit(waits, str(first), "slow"), client.submit(waits, str(second), "quick")
    (second).touch()
    ended = client.as_completed([slow, quick], SOON_S)
    assert next(ended).result() == "quick"
    first.touch()
    assert [each.result() for each in ended] == ["slow"]


def test_failure_brings_its_traceback(client: Client) -> None:
    with pytest.raises(TaskFailed, match=r"failed: Odd: too hot\n") as caught:
        client.submit(fails, "too hot").result(SOON_S)
    assert caught.value.type == "Odd"
    assert caught.value.traceback.splitlines()[0] == "Traceback (most recent call last):"
    place = f'worker_tasks.py", line {line_of("raise Odd")}, in fails'
    assert place in caught.value.traceback.splitlines()[1]
    assert caught.value.__notes__[0].startswith("On the worker:\nTraceback")
    with pytest.raises(TaskFailed, match="the result is 'text'; give a whole number") as caught:
        client.submit(lies, "text").result(SOON_S)
    assert caught.value.type == "BadResult"
    with pytest.raises(TaskFailed, match=r"BadParameters: arguments of .*: epochs is 'x'"):
        client.submit(train.name, {"epochs": "x"}, **NO_GPU).result(SOON_S)


def line_of(text: str) -> int:
    lines = Path(worker_tasks.__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_waiting_has_an_end_and_cancelling_another(client: Client, tmp_path: Path) -> None:
    handle = client.submit(waits, str(tmp_path / "never"))
    with pytest.raises(TimedOut, match=r"has not ended within 0.1 s; the server goes on"):
        handle.result(timeout=0.1)
    assert next(handle.logs(follow=True)) == "waits"
    assert handle.explain().status == "running"
    assert handle.cancel()
    assert handle.wait(SOON_S).status == "cancelled"
    with pytest.raises(TaskCancelled, match="was cancelled"):
        handle.result()
    assert not client.submit("echo", **NO_GPU).wait(SOON_S).error


def test_result_beyond_what_is_shown_is_read_apart(client: Client) -> None:
    assert len(client.submit(large, 3_000_000).result(SOON_S)) == 3_000_000


def test_refusals_say_why(client: Client, user: User) -> None:
    with pytest.raises(Refused, match="no worker can ever take this") as caught:
        client.submit("echo", gpu_memory="900GB")
    assert caught.value.reasons == ["1 has no GPU of 900GB"]
    with pytest.raises(Refused, match=r"a worker started with --app mine runs it"):
        client.submit("mine.train")
    with pytest.raises(NotFound, match="there is no task nonsense"):
        client.handle("nonsense").result(SOON_S)
    with Client(client.place.url, key="k" * 40) as stranger, pytest.raises(NotAllowed, match="is from key"):
        stranger.submit("echo")
    nowhere = f"http://127.0.0.1:{free_port()}"
    with Client(nowhere) as lost, pytest.raises(Unreachable) as away:
        lost.submit("echo")
    assert str(away.value) == (
        f"no cluster manager answers at {nowhere} (connection refused); start one with `gpu-orchestrator "
        "up`, or name another: Client(url), GPU_ORCHESTRATOR_URL or `gpu-orchestrator login URL`"
    )


def test_connection_is_used_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    opens, sends = dial.connection, blocking._Line._sent

    def connection(place: Any) -> Any:
        opened.append(opens(place))
        return opened[-1]

    sent: list[str] = []

    def send(line: Any, to: Any, request: Any) -> Any:
        sent.append(request.path)
        return sends(line, to, request)

    monkeypatch.setattr(dial, "connection", connection)
    monkeypatch.setattr(blocking._Line, "_sent", send)
    handle = client.submit("echo", **NO_GPU)
    handle.wait(SOON_S)
    for _ in range(3):
        handle.explain()
    assert (len(opened), len(sent)) == (1, 5), sent


def test_threads_share_a_client(client: Client) -> None:
    with ThreadPoolExecutor(4) as threads:
        squares = threads.map(lambda number: client.submit(on_gpu, number).result(SOON_S)[0], range(12))
        assert list(squares) == [number * number for number in range(12)]


FORKS = """
import os
from gpu_orchestrator import Client

client = Client()

def submits(first):
    numbers = range(first, first + 20)
    return all(client.submit("echo", n, gpus=0).result(60) == n for n in numbers)

assert submits(0)
children = []
for first in (1000, 2000):
    if not (child := os.fork()):
        os._exit(0 if submits(first) else 1)
    children.append(child)
assert submits(0)
print([os.waitpid(child, 0)[1] for child in children])
"""


def test_forked_processes_have_connections_of_their_own(user: User) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS], env=user.environ, capture_output=True, text=True, timeout=SOON_S
    )
    assert done.stdout == "[0, 0]\n", done.stderr


@pytest.mark.usefixtures("_at_home")
def test_second_event_loop_is_told_to_take_its_own_client() -> None:
    awaiting, first = AsyncClient(), asyncio.new_event_loop()
    first.run_until_complete(awaiting.submit("echo", **NO_GPU))
    with pytest.raises(RuntimeError, match="connections in another event loop; give each loop its own"):
        asyncio.run(awaiting.submit("echo", **NO_GPU))
    first.run_until_complete(awaiting.close())
    first.close()


async def test_coroutines_do_the_same(awaiting: AsyncClient, tmp_path: Path) -> None:
    assert await awaiting.map(shout, ["a", "b"]) == ["A", "B"]
    handles = await awaiting.batch(Call("echo", number, **NO_GPU) for number in range(300))
    assert await awaiting.gather(handles, SOON_S) == list(range(300))
    handle = await awaiting.submit(train, 2)
    assert [line async for line in handle.logs(follow=True)] == ["epoch 1", "epoch 2"]
    assert (await handle.result(SOON_S))[1] == Score(2, 0.25)
    assert (await handle.explain()).status == (await handle.info()).status == "completed"
    slow = await awaiting.submit(waits, str(tmp_path / "never"))
    with pytest.raises(TimedOut):
        await slow.wait(0.1)
    assert await slow.cancel()
    failed = await awaiting.submit(fails, "too hot")
    seen = [each async for each in awaiting.as_completed([slow, failed], SOON_S)]
    assert {each.id for each in seen} == {slow.id, failed.id}
    with pytest.raises(TaskFailed, match="too hot") as caught:
        await failed.result()
    assert "in fails" in caught.value.traceback
    assert len(await (await awaiting.submit(large, 3_000_000)).result(SOON_S)) == 3_000_000
    nowhere = f"http://127.0.0.1:{free_port()}"
    async with AsyncClient(nowhere) as lost:
        with pytest.raises(
            Unreachable, match=r"\(connection refused\); start one with `gpu-orchestrator up`"
        ):
            await lost.submit("echo")


async def test_values_are_followed_awaited(awaiting: AsyncClient) -> None:
    failing = await awaiting.submit(counts_too, 5, fail_at=2)
    stream = aiter(failing.stream())
    assert [await anext(stream), await anext(stream)] == [0, 1]
    with pytest.raises(TaskFailed, match="Odd: not 2"):
        await anext(stream)


async def test_events_are_followed(awaiting: AsyncClient, client: Client) -> None:
    handle = client.submit("echo", **NO_GPU)
    handle.wait(SOON_S)

    def is_its_end(event: Any) -> bool:
        return bool(event.name == "task_completed" and event.data["task_id"] == handle.id)

    assert next(each for each in client.events("0") if is_its_end(each)).id
    async for event in awaiting.events("0"):
        if is_its_end(event):
            break
