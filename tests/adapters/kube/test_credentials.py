"""Exec plugins: run when needed, cached until expiry, and named in a one-line error when they fail."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gpu_orchestrator.adapters.kube.auth.credentials import Exec, ExecEnv, ExecSpec, TokenFile
from gpu_orchestrator.adapters.kube.errors import ConfigError

V1 = "client.authentication.k8s.io/v1"


def plugin(folder: Path, script: str, **spec: Any) -> Exec:
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\necho run >> {folder}/runs\n{script}\n")
    path.chmod(0o755)
    return Exec(ExecSpec("./plugin", **spec), folder, {"server": "https://h"})


def prints(expires: str = "", token: str = "t$(wc -l < runs)") -> str:
    status = f'"token": "{token}"' + (f', "expirationTimestamp": "{expires}"' if expires else "")
    answer = f'{{"apiVersion": "{V1}", "kind": "ExecCredential", "status": {{{status}}}}}'
    return f'cd "$(dirname "$0")"; cat <<END\n{answer}\nEND'


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text().splitlines())


async def test_plugin_runs_once_and_its_token_is_cached(tmp_path: Path) -> None:
    credentials = plugin(tmp_path, prints("2999-01-01T00:00:00Z"))
    tokens = [identity.token for identity in await asyncio.gather(*(credentials.current() for _ in range(5)))]
    assert tokens == ["t1"] * 5
    assert runs(tmp_path) == 1


async def test_plugin_runs_again_after_expiry_or_401(tmp_path: Path) -> None:
    credentials = plugin(tmp_path, prints("2020-01-01T00:00:00Z"))
    assert (await credentials.current()).token == "t1"
    assert (await credentials.current()).token == "t2"
    credentials = plugin(tmp_path, prints())
    assert (await credentials.current()).token == "t3"
    assert (await credentials.current()).token == "t3"
    assert (await credentials.current(renew=True)).token == "t4"


async def test_concurrent_renewals_run_the_plugin_once(tmp_path: Path) -> None:
    credentials = plugin(tmp_path, prints())
    await credentials.current()
    await asyncio.gather(*(credentials.current(renew=True) for _ in range(5)))
    assert runs(tmp_path) == 2


async def test_plugin_receives_args_env_and_cluster_info(tmp_path: Path) -> None:
    script = (
        f'printf %s "$KUBERNETES_EXEC_INFO" > {tmp_path}/info; printf %s "$REGION-$1" > {tmp_path}/seen\n'
    )
    credentials = plugin(
        tmp_path,
        script + prints(),
        args=("login",),
        env=(ExecEnv("REGION", "eu"),),
        provide_cluster_info=True,
    )
    await credentials.current()
    info = json.loads((tmp_path / "info").read_text())
    assert info["apiVersion"] == V1
    assert info["spec"]["cluster"] == {"server": "https://h"}
    assert (tmp_path / "seen").read_text() == "eu-login"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        pytest.param(
            "echo no luck >&2; exit 3", "failed with exit code 3: no luck; run it by hand", id="fails"
        ),
        pytest.param("echo hello", "printed no ExecCredential", id="prints something else"),
        pytest.param(
            'echo \'{"apiVersion": "client.authentication.k8s.io/v1beta1"}\'',
            "answered in client.authentication.k8s.io/v1beta1, the kubeconfig asks for",
            id="answers in another version",
        ),
        pytest.param(
            f'echo \'{{"apiVersion": "{V1}", "status": {{}}}}\'',
            "gave neither a token nor a client certificate",
            id="gives nothing",
        ),
    ],
)
async def test_wrong_plugin(tmp_path: Path, script: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await plugin(tmp_path, script).current()


async def test_missing_plugin_shows_the_install_hint() -> None:
    spec = ExecSpec("no-such-plugin", install_hint="get it from the cloud's page")
    with pytest.raises(ConfigError, match=r"cannot run .*'no-such-plugin'.*get it from the cloud's page"):
        await Exec(spec, Path("/")).current()


def is_running(pid: Path) -> bool:
    number = pid.read_text().strip() if pid.exists() else ""
    return bool(number) and Path(f"/proc/{number}").exists()


async def test_hanging_plugin_is_killed_on_cancel(tmp_path: Path) -> None:
    credentials = plugin(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 600")
    task = asyncio.create_task(credentials.current())
    while not is_running(tmp_path / "pid"):  # noqa: ASYNC110  # another process writes the file
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_running(tmp_path / "pid")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "is empty; write a token into it", id="empty"),
        pytest.param(b"\xff\xfe", "is not a text file; write a token into it", id="not text"),
    ],
)
async def test_token_file_without_a_token_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        await TokenFile(tmp_path / "token").current()
