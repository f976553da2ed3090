"""Manage keys by command, as docs/security.md does, on a real `up` with TLS and DEBUG logs; then no secret is
in its output or its store."""

import asyncio
import json
import re
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controlplane.cluster import free_port
from gpu_orchestrator.adapters import tls
from gpu_orchestrator.adapters.store.valkey.client import Client
from tests.adapters.test_tls import Files
from tests.cli.test_server import lines_until, only_line, start
from tests.support import warm
from tests.support.command_line import COMMAND
from tests.support.paths import ROOT
from tests.support.workers import compiled

pytestmark = pytest.mark.real
GUIDE = ROOT / "docs" / "security.md"
BLOCKS = re.findall(
    r"<!-- run by tests/cli/test_key\.py -->\n```sh\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL
)
KEEPERS = {"client.json", "worker-token", "secrets-key"}
"""Files whose purpose is to hold a secret; each is private."""


class Up:
    """`up` with TLS, everything at DEBUG, its output in a file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        self.files = Files(folder)
        self.api_key = secrets.token_hex(32)
        (folder / "api-key").write_text(self.api_key)
        self.environ = {
            "DATA_DIR": str(self.data),
            "API_KEY_FILE": str(folder / "api-key"),
            "SSL_CERT_PATH": self.files.cert,
            "SSL_KEY_PATH": self.files.key,
            "LOG_LEVEL": "DEBUG",
        }
        self.process = warm.Popen(
            [COMMAND, "up", "--simulate", "2", "--quiet", "--port", str(free_port())],
            cwd=folder,
            env={**compiled(), **self.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = lines_until(self.process, "Ctrl-C stops everything")

    @property
    def url(self) -> str:
        return str(json.loads((self.data / "client.json").read_text())["url"])

    def command(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return start(self.folder, *words, **{"DATA_DIR": str(self.data), **environ})

    def json(self, *words: str) -> Any:
        done = self.command(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def end(self) -> str:
        """End it, and return all its output."""
        self.process.terminate()
        rest, _ = self.process.communicate(timeout=60)
        return "".join(self.output) + rest


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()


def test_run_with_tls_leaks_no_secret(up: Up) -> None:
    assert up.url.startswith("https://127.0.0.1:")
    made = up.json("key", "create", "ann", "--expires", "90d")
    worker = up.json("key", "create", "box", "--scope", "worker", "--owner", "lab")
    few = up.json("key", "create", "few", "--limit", "running_tasks=4", "--limit", "weight=0.5")
    assert few["limits"] == {"running_tasks": 4, "weight": 0.5}
    assert (made["owner"], made["scopes"], worker["owner"]) == ("ann", ["submit"], "lab")
    (block,) = BLOCKS
    for line in block.replace("key create ann", "key create guide").splitlines():
        done = up.command(*line.split()[1:])
        assert done.returncode == 0, done.stderr

    # as ann, over a verified connection
    ann = {"GPU_ORCHESTRATOR_URL": up.url, "API_KEY": made["key"], "DATA_DIR": str(up.folder / "elsewhere")}
    done = up.command("task", "submit", "echo", '{"a": 1}', "--gpus", "0", "--wait", "--json", **ann)
    assert "certificate" in done.stderr, "a client without the CA does not connect"
    assert "--ca FILE" in done.stderr
    trust = ("--ca", up.files.ca)
    done = up.command(*trust, "task", "submit", "echo", '{"a": 1}', "--gpus", "0", "--wait", "--json", **ann)
    assert json.loads(done.stdout)["result"] == {"a": 1}, done.stderr
    assert "admin is needed" in up.command(*trust, "key", "list", **ann).stderr
    wrong = secrets.token_hex(32)
    message = up.command(*trust, "task", "list", **{**ann, "API_KEY": wrong}).stderr
    assert "this key is not known here" in message
    assert wrong not in message

    # a worker with its own key, which is then revoked
    joined = warm.Popen(
        [COMMAND, "worker", "--server", up.url, *trust, "--name", "box", "--simulate", "1", "--v", "1"],
        env={**compiled(), "GPU_ORCHESTRATOR_TOKEN": worker["key"], "HOME": str(up.folder)},
        cwd=up.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    by_worker = "".join(lines_until(joined, '"message": "joined"'))
    assert up.json("key", "revoke", worker["key_id"])["status"] == "revoked"
    by_worker += joined.communicate(timeout=60)[0]
    assert joined.returncode == 1
    assert "revoked" in by_worker

    signing = asyncio.run(callback_secret(up, made["key"]))
    actions = [(each["action"], each["object"]) for each in up.json("audit", "--limit", "100")["entries"]]
    assert ("DELETE /keys/{key_id}", worker["key_id"]) in actions
    assert ("WS /workers/{name}/session", "box") in actions
    kept = asyncio.run(everything(up.data / "store" / "valkey.sock"))
    assert made["key_id"] in kept
    by_server = up.end()
    files = {
        path.name: path.read_text(errors="replace")
        for path in up.data.rglob("*")
        if path.is_file() and path.name not in KEEPERS
    }
    assert any("appendonly" in name for name in files), "no file on disk was checked"
    own_token = (up.data / "worker-token").read_text()
    sealing = (up.data / "secrets-key").read_text()
    for secret in (up.api_key, made["key"], worker["key"], wrong, own_token, signing, sealing):
        bare = secret.strip().removeprefix("gpo_").removeprefix("whsec_")
        for where, text in {
            "its output": by_server,
            "the worker's": by_worker,
            "the store": kept,
            **files,
        }.items():
            assert bare not in text, where
    for name in KEEPERS:
        assert (up.data / name).stat().st_mode & 0o077 == 0


async def callback_secret(up: Up, key: str) -> str:
    headers, trust = {"Authorization": f"Bearer {key}"}, tls.client(up.files.ca)
    async with (
        aiohttp.ClientSession(up.url, headers=headers) as http,
        http.post("/callbacks/secret", ssl=trust) as answer,
    ):
        assert answer.status == 201
        return str((await answer.json())["secret"])


async def everything(socket: Path) -> str:
    """Return every raw value in the store."""
    client = Client(f"unix://{socket}", answer_s=10)
    readers = {
        b"string": ("GET",),
        b"hash": ("HGETALL",),
        b"set": ("SMEMBERS",),
        b"list": ("LRANGE", "0", "-1"),
        b"zset": ("ZRANGE", "0", "-1"),
        b"stream": ("XRANGE", "-", "+"),
    }
    found: list[Any] = []
    try:
        for name in await client.execute("KEYS", "*"):
            command, *rest = readers[await client.execute("TYPE", name)]
            found += [name, await client.execute(command, name, *rest)]
    finally:
        await client.close()
    return repr(found)


def test_certificate_for_another_address_is_reported_at_once(tmp_path: Path) -> None:
    files = Files(tmp_path)
    words = f"up --simulate 1 --port 0 --host 127.0.0.2 --data {tmp_path / 'data'}".split()
    line = only_line(start(tmp_path, *words, SSL_CERT_PATH=files.cert, SSL_KEY_PATH=files.key))
    assert f"SSL_CERT_PATH={files.cert} is not valid for 127.0.0.2" in line
    assert "set API_HOST to a name or address of this machine that the certificate is for" in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("key", "create", "ann", "--expires", "soon"),
            "--expires soon is not a duration; write for example 30m, 12h or 90d",
        ),
        (
            ("key", "create", "ann", "--limit", "many"),
            "--limit many is not a limit; write for example running_tasks=4",
        ),
        (("--ca", "/nowhere", "key", "list"), "--ca /nowhere cannot be read: no such file"),
    ],
)
def test_bad_options_are_reported(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    done = start(tmp_path, *words, GPU_ORCHESTRATOR_URL="https://127.0.0.1:1", API_KEY="k" * 32)
    assert message in only_line(done)
