"""The wheel alone, as `pip install` gives it: the tutorial works, and mypy strict accepts its code."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts import pythons
from tests.support import documents, wheels
from tests.support.command_line import User, serving
from tests.support.paths import ROOT
from tests.support.scale import Scale
from tests.support.wheels import Environment

pytestmark = pytest.mark.real
TUTORIAL = "docs/tutorials/python.md"
WRONG = """
from gpu_orchestrator import AsyncClient, Call, Client
from gpu_orchestrator.client import Handle
from my_tasks import Score, shout, train, words


def blocking(client: Client) -> list[Score]:
    train.submit("three")  # type: ignore[arg-type]
    client.submit(train, epoch=3)  # type: ignore[call-overload]
    Call("echo", gpus="one")  # type: ignore[call-overload]
    Call("echo", nonsense=1)  # type: ignore[call-overload]
    train.options(retry=2)  # type: ignore[call-arg]
    texts: list[str] = client.map(shout, ["a"])
    handle: Handle[list[Score]] = train.submit(epochs=len(texts))
    wrong: Handle[str] = train.submit(3)  # type: ignore[assignment]
    wrong.cancel()
    for word in client.submit(words, "a").stream():
        word.upper()
        word.uppper()  # type: ignore[attr-defined]
    client.submit(words, 1)  # type: ignore[call-overload]
    return handle.result(timeout=1)


async def awaiting(client: AsyncClient) -> list[str]:
    handle = await client.submit(train, 3)
    scores: list[Score] = await handle.result()
    async for word in (await client.submit(words, "a")).stream():
        word.uppper()  # type: ignore[attr-defined]
    return await client.gather([await client.submit(shout, str(score.loss)) for score in scores])
"""


def files() -> dict[str, str]:
    """Return the files of the tutorial."""
    return dict(re.findall(r"```python\n# (\S+)\n(.*?)```", (ROOT / TUTORIAL).read_text(), flags=re.DOTALL))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """Return an environment as `pip install gpu-orchestrator` makes it."""
    return wheels.environment(tmp_path_factory.mktemp("alone") / "venv", wheel)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a user's folder with the files of the tutorial."""
    for name, code in files().items():
        (tmp_path / name).write_text(code)
    return tmp_path


def test_tutorial_works_with_the_wheel_alone(
    wheel: Path, alone: Environment, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    serves = wheels.with_pip_and_cache(tmp_path_factory.mktemp("serves") / "venv", wheel)
    _, *programs = documents.run_by("tests/client/test_client.py", TUTORIAL)
    with up(serves, folder, "--app", "my_tasks") as user:
        env = {**user.environ, "PATH": f"{alone.bin}:{os.environ['PATH']}"}
        documents.type_in(programs, cwd=folder, env=env, patience_s=1.0)
    listed = subprocess.run(
        [alone.python, "-c", "import gpu_orchestrator; print(gpu_orchestrator.__file__)"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(listed.stdout).is_relative_to(alone.folder)


@pytest.mark.parametrize(
    ("command", "extra"), [("up", "manager"), ("server", "manager"), ("webhook", "webhook")]
)
def test_command_whose_extra_is_not_installed_names_it(
    command: str, extra: str, alone: Environment, tmp_path: Path
) -> None:
    done = subprocess.run(
        [alone.program, command], env={"HOME": str(tmp_path)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.endswith(
        f" is not installed; it comes with pip install 'gpu-orchestrator[{extra}]', from a clone "
        f"pip install '.[{extra}]'\n"
    )
    assert done.stderr.startswith(f"gpu-orchestrator: gpu-orchestrator {command} needs ")
    assert list(tmp_path.iterdir()) == []


def test_backup_needs_a_store_that_is_not_installed(alone: Environment, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    done = subprocess.run(
        [alone.program, "backup", "to", "--data", str(tmp_path)],
        env={"HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("gpu-orchestrator: the embedded store is not installed; it comes with pip ")


@contextmanager
def up(serves: Environment, folder: Path, *words: str) -> Iterator[User]:
    """Run `up` where no other program can be found: no Node, no Go, not even a shell."""
    assert not any(shutil.which(name, path=str(serves.bin)) for name in ("node", "go", "sh"))
    with serving(folder, *words, program=serves.program, PATH=str(serves.bin)) as user:
        yield user


@pytest.mark.parametrize("locked", [True, False], ids=["locked", "newest"])
@pytest.mark.parametrize("version", pythons.PROMISED)
def test_up_works_on_each_python(
    version: str, locked: bool, wheel: Path, scale: Scale, tmp_path: Path
) -> None:
    """`make test` does it in the test of the tutorial, on the Python at hand with the locked versions."""
    python = pythons.find(version, os.environ)
    if scale.tier == "test" or python is None:
        pytest.skip("make accept does it" if python else f"there is no Python {version} here")
    serves = wheels.with_pip(tmp_path / "venv", wheel, python, locked=locked)
    (tmp_path / "home").mkdir()
    with up(serves, tmp_path / "home") as user:
        listed = subprocess.run(
            [serves.program, "task", "list", "--json"],
            env=user.environ,
            capture_output=True,
            text=True,
            check=True,
        )
    assert {task["status"] for task in json.loads(listed.stdout)["tasks"]} == {"completed"}


def test_mypy_strict_accepts_the_tutorial_and_finds_mistakes(alone: Environment, folder: Path) -> None:
    (folder / "wrong.py").write_text(WRONG)
    names = sorted(set(files()) - {"test_my_tasks.py"} | {"wrong.py"})
    words = ("--strict", "--warn-unused-ignores", "--python-executable", str(alone.python), *names)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words], cwd=folder, capture_output=True, text=True, timeout=240
    )
    assert done.stdout == f"Success: no issues found in {len(names)} source files\n"
