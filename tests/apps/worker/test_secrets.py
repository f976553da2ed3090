"""Tests that tasks cannot read the secrets of the worker and of the manager, as far as that can be had."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.adapters import process_rights
from gpu_orchestrator.adapters.settings import SECRETS, Settings
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker import environment
from tests.apps.worker.conftest import NewWorker
from tests.support.scripted_server import TOKEN, Peer
from tests.support.workers import open_to_all

SECRET = "a-secret-of-the-manager"
NOBODY = "nobody"
FUNCTIONS = tuple(
    part
    for name in ("environment_of", "reads")
    for part in ("--function", f"{name}=tests.support.worker_functions:{name}")
)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes as another user")
HIDDEN = [
    *(name.upper() for name in SECRETS),
    *(f"{name.upper()}_FILE" for name in SECRETS),
    *(each.name.upper() for each in fields(Settings) if each.name.endswith("_key_file")),
    *("GPU_ORCHESTRATOR_TOKEN", "SSL_KEY_PATH", "RESULTS_S3_SECRET_KEY", "RESULTS_S3_ACCESS_KEY_FILE"),
    *("redis_password", "API_KEY_OF_MINE"),
]


@pytest.mark.parametrize("name", HIDDEN)
def test_runners_get_no_variable_with_a_secret(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("HF_HOME", "/models")
    assert name not in environment.without_secrets()
    assert environment.without_secrets()["HF_HOME"] == "/models"


def test_every_secret_setting_is_covered() -> None:
    assert {"api_key", "worker_token", "callback_secret", "redis_password", "redis_url"} <= set(SECRETS)


def look(pid: int, name: str) -> str:
    try:
        with Path(f"/proc/{pid}/{name}").open("rb") as file:
            return "read" if file.read(1) or name == "mem" else "empty"
    except PermissionError:
        return "refused"
    except OSError:
        return "read"  # the first page of the memory is not mapped, but the file could be opened


def seen_by_another(*, is_hidden: bool) -> list[str]:
    """Return what a process sees of another one of its user. Both have no rights of root."""
    to_us, from_child = os.pipe()
    if (child := os.fork()) == 0:
        process_rights.become(process_rights.find(NOBODY).encode())
        if is_hidden:
            process_rights.hide()
        if (reader := os.fork()) == 0:
            found = [look(os.getppid(), name) for name in ("environ", "mem", "stat")]
            os.write(from_child, " ".join(found).encode())
            os._exit(0)
        os.waitpid(reader, 0)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(from_child)
    with os.fdopen(to_us) as answer:
        return answer.read().split()


@as_root
def test_hidden_process_cannot_be_read_by_others_of_its_user() -> None:
    assert seen_by_another(is_hidden=False) == ["read", "read", "read"]
    assert seen_by_another(is_hidden=True) == ["refused", "refused", "read"]


async def call(peer: Peer, task: str, function: str, **arguments: Any) -> Any:
    await peer.assign(task, "python", {"function": function, "arguments": arguments}, owner="mallory")
    ended = await peer.until(
        lambda: next((m for m in peer.received if getattr(m, "task", "") == task and is_end(m)), None), 60.0
    )
    return msgspec.json.decode(ended.result) if isinstance(ended, session.Done) else ended.error


@contextmanager
def open_folder() -> Iterator[Path]:
    """Yield a folder that every user may look into, unlike `tmp_path`, with a `token` of this user alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "token").write_text(TOKEN)
        (folder / "token").chmod(0o600)
        folder.chmod(0o755)
        yield folder


def is_end(message: session.Message) -> bool:
    return isinstance(message, session.Done | session.Failed)


@pytest.mark.real
@as_root
async def test_tasks_of_another_user_cannot_read_the_worker(
    peer: Peer, new_worker: NewWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_folder() as folder:
        token = folder / "token"
        monkeypatch.setenv("CALLBACK_SECRET", SECRET)
        simulation = ("--simulate", "1", "--simulation", str(folder / "gpus"))
        options = ("--run-as", NOBODY, "--token-file", str(token), *simulation, *FUNCTIONS)
        new_worker(*options, before=open_to_all())
        hello = await peer.receive(session.Hello)
        seen: Mapping[str, Any] = await call(peer, "look", "environment_of")
        assert (seen["uid"], seen["environ"], seen["mem"]) == (
            process_rights.find(NOBODY).uid,
            "PermissionError",
            "PermissionError",
        )
        assert set(seen["groups"]) == set(process_rights.find(NOBODY).groups)
        assert TOKEN not in str(seen)
        assert SECRET not in str(seen)
        refused = await call(peer, "steal", "reads", path=str(token))
        assert refused.type == "PermissionError"
        given = (session.Given(0, hello.devices[0].uuid),)
        await peer.assign("vram", "vram", {"mib": 100}, devices=given, memory_mib=100)
        await peer.receive(session.Done, "vram")


@as_root
@pytest.mark.parametrize(
    ("user", "why"),
    [
        pytest.param("root", "is root, who can read everything; give a user without rights", id="root"),
        pytest.param("nobody-at-all", "there is no such user here; create it with useradd", id="unknown"),
    ],
)
def test_user_for_tasks_is_checked(user: str, why: str) -> None:
    with pytest.raises(process_rights.UnknownUser, match=why):
        process_rights.find(user)


def test_only_root_can_choose_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(process_rights.UnknownUser, match="--run-as ann needs root"):
        process_rights.find("ann")
