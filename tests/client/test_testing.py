"""Tasks that run in this process, for unit tests of code that submits some."""

import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from examples import python_tasks
from examples.python_tasks import Score, shout, train
from gpu_orchestrator import testing
from gpu_orchestrator.client import (
    BadArguments,
    Call,
    File,
    NotFound,
    Refused,
    TaskFailed,
    errors,
    functions,
    task,
)
from tests.support import worker_tasks
from tests.support.paths import ROOT

TUTORIAL = ROOT / "docs/tutorials/python.md"


@task(name="broken")
def broken(text: str) -> int:
    return text  # type: ignore[return-value]


@task
def raises() -> None:
    raise ValueError("too hot")


def test_task_runs_with_its_arguments_and_gives_its_result() -> None:
    with testing.local() as client:
        handle = train.submit(epochs=2)
        assert handle.result() == [Score(1, 0.5), Score(2, 0.25)]
        assert list(handle.logs(follow=True)) == ["epoch 1", "epoch 2"]
        assert (handle.info().status, handle.cancel()) == ("completed", False)
        assert str(handle.explain()) == "completed: it ran in this process"
        assert client.handle(handle.id, train).result()[0] == Score(1, 0.5)


async def test_coroutine_function_runs_also_where_a_loop_does() -> None:
    with testing.local():
        assert shout.map(["a", "b"]) == ["A", "B"]
    assert await shout("c") == "C"


def test_group_calls_back_and_schedules_need_a_server() -> None:
    with testing.local() as client:
        calls = [worker_tasks.twice.call(number) for number in range(3)]
        assert client.group(calls, then=worker_tasks.total).result() == 6
        with pytest.raises(Refused, match="schedules need a server"):
            client.schedules.apply(worker_tasks.nightly)


def test_generator_yields_and_returns() -> None:
    with testing.local({"raw": lambda n: (each for each in range(n))}) as client:
        handle = worker_tasks.counts.submit(3)
        assert list(handle.stream()) == [0, 1, 2]
        assert list(handle.stream(after="1-2")) == [2]
        assert handle.result() == "counted to 3"
        assert list(client.submit("raw", 2).stream()) == [0, 1]
        assert list(client.handle(handle.id, worker_tasks.counts).stream()) == [0, 1, 2]
        failing = client.submit(worker_tasks.counts_too, 5, fail_at=2)
        seen: list[int] = []
        with pytest.raises(TaskFailed, match="Odd: not 2"):
            seen.extend(failing.stream())
        with pytest.raises(TaskFailed, match=r"BadResult: a value of .* is not what it says"):
            list(worker_tasks.yields_lies.submit().stream())
    assert list(worker_tasks.counts(2)) == [0, 1]


def test_files_are_taken_and_left(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("one")
    with testing.local() as client:
        sent = client.upload(tmp_path / "one")
        path, left = worker_tasks.copies.submit(sent, [sent]).result()
        assert (Path(path).name, left.bytes) == ("one", 6)
        assert client.download(left, tmp_path / "back").read_text() == "oneone"
        client.delete(sent)
        with pytest.raises(NotFound):
            client.download(sent)
        with pytest.raises(TaskFailed, match="FileMissing: there is no file"):
            worker_tasks.copies.submit(sent, []).result()
    with pytest.raises(RuntimeError, match="only a task can leave a file"):
        File.of(tmp_path / "one")


@pytest.mark.parametrize("name", ["delay", "apply_async", "send", "remote"])
def test_word_of_another_library_is_answered_with_ours(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no attribute {name}; submit\(\.\.\.\) submits it"):
        getattr(train, name)
    with pytest.raises(AttributeError, match=r"has no attribute epochs$"):
        _ = train.epochs  # type: ignore[attr-defined]


@pytest.mark.parametrize("called", functions.PROGRAM)
@pytest.mark.parametrize(
    ("program", "module", "name"),
    [
        pytest.param("/home/ann/my_tasks.py", "", "my_tasks.train", id="a file"),
        pytest.param("/home/ann/mine/tasks.py", "mine.tasks", "mine.tasks.train", id="python -m"),
        pytest.param(
            "/home/ann/mine/__main__.py", "mine.__main__", "mine.__main__.train", id="python -m of a package"
        ),
        pytest.param("/home/ann/my-tasks.py", "", "__main__.train", id="no name of a module"),
        pytest.param("", "", "__main__.train", id="a notebook"),
    ],
)
def test_task_of_the_program_has_the_name_that_workers_know(
    program: str, module: str, name: str, called: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType(called)
    if program:
        main.__file__ = program
    main.__spec__ = ModuleSpec(module, None) if module else None
    monkeypatch.setitem(sys.modules, called, main)
    names: dict[str, Any] = {"__name__": called}
    exec("def train(epochs: int) -> int: return epochs", names)
    made = task(names["train"])
    has_name = not name.startswith("__main__")
    assert made.name == (name if has_name else f"{called}.train")
    if not has_name:
        with pytest.raises(BadArguments, match="which no worker can import; move it to a module"):
            made.call(1)
    else:
        assert made.call(1).task_type == name


def test_called_it_is_a_function() -> None:
    assert train(1) == [Score(1, 0.5)]
    assert (train.__name__, train.__doc__) == ("train", python_tasks.train.function.__doc__)


def test_many_are_gathered_and_handed_out() -> None:
    with testing.local({"double": lambda number: number * 2}) as client:
        assert client.map("double", [1, 2, 3], gpus=0) == [2, 4, 6]
        handles = client.batch([train.call(2), train.options(priority="high").call(3)])
        assert {each.id: len(each.result()) for each in client.as_completed(handles)} == {
            handles[0].id: 2,
            handles[1].id: 3,
        }
        client.wait(handles)
        assert [len(each) for each in client.gather(handles)] == [2, 3]


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        pytest.param(
            broken.call("x"), "BadResult", "the result is 'x'; give a whole number", id="wrong result"
        ),
        pytest.param(raises.call(), "ValueError", "too hot", id="raises"),
        pytest.param(
            Call(train.name, {"epochs": "x"}), "BadParameters", "epochs is 'x'", id="wrong parameters"
        ),
    ],
)
def test_failure_has_type_message_and_traceback(call: Call[object], kind: str, message: str) -> None:
    with testing.local() as client:
        handle = client.submit(call)
        with pytest.raises(TaskFailed, match=message) as caught:
            handle.result()
        (collected,) = client.gather([handle], return_exceptions=True)
    assert caught.value.type == kind
    assert f"{message}" in caught.value.traceback
    assert isinstance(collected, TaskFailed)


def test_what_cannot_be_submitted_is_refused() -> None:
    with testing.local({"echo": lambda given: given}) as client:
        with pytest.raises(BadArguments, match="epochs is 'x'; give a whole number"):
            train.submit("x")  # type: ignore[arg-type]
        with pytest.raises(Refused, match=r"unknown task_type 'nonsense'; known in this process: .*echo"):
            client.submit("nonsense")
        with pytest.raises(Refused, match="unknown task_type 'nonsense'"):
            client.batch([Call("echo"), Call("nonsense")])
        with pytest.raises(NotFound, match="there is no task nonsense"):
            client.handle("nonsense").result()
        with pytest.raises(NotFound, match="there is no task nonsense"):
            client.handle("nonsense").cancel()
        with pytest.raises(TypeError, match="decorate it with @task"):
            client.submit(len)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="takes one value as parameters"):
            client.submit("echo", 1, 2)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="unknown option 'memory'"):
            client.submit("echo", memory=1)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="option timeout is nan; give a number"):
            client.submit("echo", timeout=float("nan"))
        with pytest.raises(BadArguments, match=r"options of echo cannot be sent as JSON: .*surrogates"):
            client.submit("echo", labels={"a": "\udcff"})
        with pytest.raises(BadArguments, match="missing a required argument: 'epochs'"):
            client.batch([train])  # type: ignore[arg-type]
        with pytest.raises(
            BadArguments, match=r"sent as JSON: at\[0\] is of class PosixPath of pathlib; give"
        ):
            client.submit("echo", {"at": [Path("here")]})
        with pytest.raises(BadArguments, match=r"twice: number is of class object; give numbers"):
            worker_tasks.twice.submit(object())  # type: ignore[arg-type]
        alone = client.submit("echo")
        with pytest.raises(
            TypeError, match=r"<Handle \S+> is no list of handles; give one, such as \[handle\]"
        ):
            client.gather(alone)  # type: ignore[call-overload]
        with pytest.raises(
            TypeError, match=r"'abc' is no handle; `handle\(task_id\)` of the client makes one"
        ):
            client.cancel("abc")  # type: ignore[arg-type]
        with pytest.raises(IsADirectoryError):
            client.upload("/")


def test_one_dependency_needs_no_list() -> None:
    with testing.local() as client:
        first = client.submit(train, 1)
        assert client.submit(train.options(depends_on=first.id), 1).result()
        assert client.submit(train.options(depends_on=first), 1).result()


def test_own_client_is_back_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "_default", [])
    monkeypatch.setenv("GPU_ORCHESTRATOR_URL", "nonsense")
    with testing.local():
        train.submit(1)
    with pytest.raises(errors.BadPlace, match="GPU_ORCHESTRATOR_URL nonsense is not an address"):
        train.submit(1)


def test_unit_test_of_the_tutorial_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", TUTORIAL.read_text(), flags=re.DOTALL))
    (tmp_path / "my_tasks.py").write_text(written["my_tasks.py"])
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {}
    exec(written["test_my_tasks.py"], names)
    names["test_loss_falls"]()
