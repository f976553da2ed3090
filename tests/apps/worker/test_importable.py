"""Functions are checked at start, in another process: what is missing is an error, what is odd a warning."""

import sys
from pathlib import Path

import pytest
import structlog

from gpu_orchestrator.adapters.settings import BadSettings
from gpu_orchestrator.apps.worker import environment
from gpu_orchestrator.apps.worker.handlers import importable

pytestmark = pytest.mark.real


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("print('imported')\nnumber = 1\ndef train(): ...\n")
    return tmp_path


@pytest.mark.parametrize("target", ["json:dumps", "mine:train"])
def test_function_installed_or_in_the_current_folder_is_found(folder: Path, target: str) -> None:
    importable.check({"f": target})
    assert "mine" not in sys.modules


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("nomod:x", "--function f=nomod:x cannot be imported: ModuleNotFoundError: No module named 'nomod'"),
        ("mine:test", "mine.py has no test"),
        ("mine:number", "mine.number is not a function"),
        ("broken:x", "SyntaxError"),
    ],
)
def test_function_that_does_not_exist_is_an_error(folder: Path, target: str, why: str) -> None:
    (folder / "broken.py").write_text("def x(:\n")
    with pytest.raises(BadSettings) as caught:
        importable.check({"ok": "json:dumps", "f": target})
    assert why in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "line", ["raise RuntimeError('no GPU')", "import os; os._exit(3)", "raise SystemExit"]
)
def test_module_that_fails_without_a_device_is_only_warned_of(folder: Path, line: str) -> None:
    (folder / "needs.py").write_text(line)
    with structlog.testing.capture_logs() as logged:
        importable.check({"f": "needs:x"})
    assert [each["event"] for each in logged] == ["a function could not be checked"]


def test_folder_does_not_replace_modules_of_python(folder: Path) -> None:
    for name in ("random", "json"):
        (folder / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    importable.check({"f": "random:random", "g": "json:dumps", "h": "mine:train"})


def test_check_sees_no_secret_and_no_device(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_ORCHESTRATOR_TOKEN", "secret")
    (folder / "nosy.py").write_text(
        "import os\nassert not os.environ['CUDA_VISIBLE_DEVICES']\n"
        "if 'GPU_ORCHESTRATOR_TOKEN' in os.environ: raise ImportError('a secret')\ndef x(): ...\n"
    )
    importable.check({"f": "nosy:x"})


def test_current_folder_is_searched_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/somewhere"])
    environment.add_current_folder()
    environment.add_current_folder()
    assert sys.path == ["/somewhere", str(folder)]


TASKS = """
from gpu_orchestrator import task
from other import imported

@task
def train(epochs: int) -> int: ...

@task(name="my.name")
def named() -> None: ...
"""
OTHER = "from gpu_orchestrator import task\n@task\ndef imported() -> None: ..."


def test_tasks_of_a_module_are_found_without_importing_it_here(folder: Path) -> None:
    (folder / "tasks.py").write_text(TASKS)
    (folder / "other.py").write_text(OTHER)
    assert importable.tasks_of(["tasks"]) == {
        "tasks.train": "tasks:train",
        "my.name": "tasks:named",
        "other.imported": "tasks:imported",
    }
    assert "tasks" not in sys.modules
    assert set(importable.tasks_of(["tasks", "other"])) == {"tasks.train", "my.name", "other.imported"}
    assert importable.tasks_of([]) == {}


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            "import nomod",
            "--app app cannot be imported: ModuleNotFoundError: No module named 'nomod'; install",
        ),
        (
            "\nraise RuntimeError('no GPU')",
            "--app app cannot be imported: RuntimeError: no GPU (app.py, line 2)",
        ),
        ("def train(:", "--app app cannot be imported: SyntaxError: invalid syntax (app.py, line 1)"),
        (
            "from gpu_orchestrator import task\n@task\ndef train() -> int: ...\ntrain.submit().result()",
            "--app app cannot be imported: BadArguments: app submits a task while a worker imports it",
        ),
        ("def train(): ...", "--app app has no task; decorate its functions with @gpu_orchestrator.task"),
        (
            "from gpu_orchestrator import task\n@task(name='echo')\ndef echo() -> None: ...",
            "--app app has a task with the name of another task type, echo; give it another name",
        ),
    ],
)
def test_module_without_usable_tasks_is_an_error(folder: Path, code: str, why: str) -> None:
    (folder / "app.py").write_text(code)
    with pytest.raises(BadSettings) as caught:
        importable.tasks_of(["app"])
    assert str(caught.value).startswith(why)
    assert ("submits" not in why) or str(caught.value).endswith("program of its own (app.py, line 4)")
    assert ("; install the module here" in str(caught.value)) == ("nomod" in code)


@pytest.mark.parametrize("app", ["tasks:train", "tasks.py", "./tasks", "", "my-tasks"])
def test_app_that_is_no_module_is_told_before_it_is_imported(app: str) -> None:
    with pytest.raises(BadSettings, match="is not the name of a module; write it as in an import"):
        importable.tasks_of([app])
