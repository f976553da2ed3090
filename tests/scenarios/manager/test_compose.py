"""The compose files: they are valid, and their commands work as plain processes on this machine."""

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.cluster import free_port
from gpu_orchestrator.adapters.store.valkey.embedded import binary
from tests.support.fleet import COMMAND
from tests.support.paths import ROOT
from tests.support.workers import compiled

FILES = ("docker-compose.yml", "docker-compose.test.yml")
KNOWN = {
    *("build", "image", "command", "environment", "secrets", "volumes", "ports", "restart", "healthcheck"),
    *("depends_on", "deploy", "stop_grace_period", "pid"),
}
START_S = 60


def services(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())["services"]
    return found


@pytest.mark.parametrize("name", FILES)
def test_compose_files_are_valid(name: str) -> None:
    whole = yaml.safe_load((ROOT / name).read_text())
    assert set(whole) <= {"services", "volumes", "secrets"}
    for service in whole["services"].values():
        assert set(service) <= KNOWN
        assert ("build" in service) != ("image" in service)
        assert all(isinstance(word, str) for word in service["command"])
        for other in service.get("depends_on", ()):
            assert other in whole["services"]
        for secret in service.get("secrets", ()):
            assert secret in whole["secrets"]
        for volume in service.get("volumes", ()):
            assert volume.split(":")[0] in whole["volumes"]
        for published in service.get("ports", ()):
            assert published.startswith("127.0.0.1:"), "no port is open to other machines by default"
        if "build" in service:
            assert service["build"] == {"context": "."}, "the one image has all components"


def test_compose_worker_uses_the_whole_machine() -> None:
    """All GPUs, as many tasks as GPUs, and memory that can be attributed to tasks."""
    worker = services("docker-compose.yml")["worker"]
    assert worker["pid"] == "host"
    (devices,) = worker["deploy"]["resources"]["reservations"]["devices"]
    assert (devices["driver"], devices["count"], devices["capabilities"]) == ("nvidia", "all", ["gpu"])
    assert "--max-concurrent" not in worker["command"]


class Machine:
    """Stands in for the containers' environment: /data, /run/secrets, and the other services by name."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.port, self._store_port = free_port(), free_port()
        (folder / "secrets").mkdir()
        for name in ("api-key", "worker-token"):
            (folder / "secrets" / name).write_text(name * 8)

    def start(self, service: dict[str, Any]) -> subprocess.Popen[str]:
        return self._stack.enter_context(_process(*self._words(service), self._environment(service)))

    def run(self, service: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._words(service),
            env=self._environment(service),
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=START_S,
        )

    def _words(self, service: dict[str, Any]) -> list[str]:
        words = [self._local(word) for word in service["command"]]
        if words[0] == "valkey-server":
            return [binary(), *words[1:], "--dir", str(self._folder)]
        return [COMMAND, *words]

    def _environment(self, service: dict[str, Any]) -> dict[str, str]:
        environment = service.get("environment", {})
        # One without a value is passed on from where compose runs, if it is set there.
        given = {name: self._local(value) for name, value in environment.items() if value is not None}
        return {**compiled(), "HOME": str(self._folder), **given}

    def _local(self, word: str) -> str:
        for there, here in {
            "/run/secrets": str(self._folder / "secrets"),
            "/data": str(self._folder / "data"),
            "server:8000": f"127.0.0.1:{self.port}",
            "store:6379": f"127.0.0.1:{self._store_port}",
        }.items():
            word = word.replace(there, here)
        return {"8000": str(self.port), "6379": str(self._store_port), "0.0.0.0": "127.0.0.1"}.get(word, word)

    def until_healthy(self, service: dict[str, Any]) -> None:
        """Wait until the service's own health check passes."""
        check = service["healthcheck"]["test"]
        assert check[:2] == ["CMD", "python3"]
        url = check[3].split("'")[1].replace(":8000", f":{self.port}")
        end = time.monotonic() + START_S
        while True:
            try:
                urllib.request.urlopen(url, timeout=5).close()
                return
            except OSError:
                assert time.monotonic() < end, "the server did not become healthy"
                time.sleep(0.1)


@contextmanager
def _process(*words_and_environment: Any) -> Iterator[subprocess.Popen[str]]:
    *words, environment = words_and_environment
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    ) as one:
        try:
            yield one
        finally:
            one.terminate()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with ExitStack() as stack:
        yield Machine(tmp_path, stack)


@pytest.mark.real
def test_compose_test_file_works(machine: Machine) -> None:
    found = services("docker-compose.test.yml")
    machine.start(found["store"])
    machine.start(found["server"])
    machine.until_healthy(found["server"])
    machine.start(found["worker"])
    done = machine.run(found["probe"])
    assert (done.returncode, "world" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.real
def test_compose_file_starts_with_its_secrets(machine: Machine) -> None:
    found = services("docker-compose.yml")
    machine.start(found["server"])
    machine.until_healthy(found["server"])
    machine.start(found["worker"])
    service = {
        "command": ["task", "submit", "echo", '{"hello": "gpus"}', "--gpus", "0", "--wait"],
        "environment": {"GPU_ORCHESTRATOR_URL": "http://server:8000", "API_KEY": "api-key" * 8},
    }
    done = machine.run(service)
    assert (done.returncode, "gpus" in done.stdout) == (0, True), done.stdout + done.stderr
    assert os.listdir(machine._folder / "data" / "store"), "the store is where the volume is"
