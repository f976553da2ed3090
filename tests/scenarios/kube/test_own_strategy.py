"""The tutorial's strategy, from an installed package: operator, gpu-scheduler and manager know its name."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from controlplane.cluster import Cluster, free_port
from tests.policies.test_tutorial import install_the_package
from tests.scenarios.conftest import NewOperator
from tests.support import warm
from tests.support.operator_process import Site
from tests.support.scheduler_stage import Stage, pod, until

CELSIUS = "example.com/rack-celsius"
OURS = str(Path(sys.executable).with_name("gpu-orchestrator"))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the tutorial's package where processes started by this test find it."""
    folder = tmp_path / "site"
    folder.mkdir()
    install_the_package(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def racks(site: Site | Stage) -> str:
    """Make a hot node with many GPUs and a cool one with few; return the name of the cool one."""
    make = site.nodes if isinstance(site, Site) else site.gpu_nodes
    make(1, gpus=8, prefix=f"{site.namespace}-hot", labels={CELSIUS: "41"})
    (cool,) = make(1, gpus=4, prefix=f"{site.namespace}-cool", labels={CELSIUS: "24"})
    return cool


@pytest.mark.usefixtures("package")
def test_operator_knows_the_strategy(site: Site, new_operator: NewOperator) -> None:
    cool = racks(site)
    with new_operator("--no-leader-elect"):
        site.create("model", run_for="1h", schedulingStrategy="coolRacks")
        assert site.until("model", "Running")["assignedNode"] == cool
        assert "chosen by coolRacks" in site.event("model", "Scheduled")


def test_operator_without_the_package_says_so(site: Site, new_operator: NewOperator) -> None:
    with new_operator("--no-leader-elect"):
        site.create("model", schedulingStrategy="coolRacks")
        assert site.until("model", "Pending")["message"].startswith("unknown strategy 'coolRacks'; known: ")


@pytest.mark.usefixtures("package")
def test_scheduler_knows_the_strategy_by_annotation_and_by_setting(stage: Stage) -> None:
    cool = racks(stage)
    stage.scheduler(leaderElect=False, strategy="coolRacks")
    stage.create(pod("named", gpus=1, strategy="coolRacks"), pod("default", gpus=1))
    assert {where.rpartition(":")[0] for where in stage.wait_bound("named", "default").values()} == {cool}


def test_broken_package_is_named_when_a_process_starts(package: Path, operator_cluster: Cluster) -> None:
    (package / "cool_racks.py").write_text("import a_module_that_is_missing\n")
    for words in (
        ["operator"],
        ["scheduler"],
        ["server", "--data", str(package / "data"), "--port", str(free_port())],
    ):
        done = command(*words, KUBECONFIG=str(operator_cluster.kubeconfig))
        assert done.returncode == 1
        assert "strategy 'coolRacks' cannot be loaded: ModuleNotFoundError" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


def test_unknown_default_strategy_ends_the_scheduler(operator_cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("strategy: coolRacks\n")
    config = f"--config={tmp_path / 'settings.yaml'}"
    done = command("scheduler", config, KUBECONFIG=str(operator_cluster.kubeconfig))
    assert done.returncode == 1
    assert "unknown strategy 'coolRacks'; known: binPack" in done.stderr


def command(*words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [OURS, *words], env={**os.environ, **env}, capture_output=True, text=True, timeout=60
    )


@pytest.mark.real
def test_manager_knows_the_strategy(package: Path) -> None:
    """Of two workers, the hot one has more GPUs, and the cool one gets the task."""
    data, port = package / "data", str(free_port())
    env = {"PLACEMENT_POLICY": "coolRacks", "DATA_DIR": str(data), "HOME": str(package), "API_PORT": port}
    with ExitStack() as stack:
        stack.enter_context(running("server", **env))
        until(
            lambda: (data / "worker-token").exists() and (data / "client.json").exists(), "the server is up"
        )
        for name, gpus, celsius in (("hot", "8", "41"), ("cool", "4", "24")):
            words = ("--name", name, "--simulate", gpus, "--label", f"{CELSIUS}={celsius}")
            joined = ("--server", f"http://127.0.0.1:{port}", "--token-file", str(data / "worker-token"))
            stack.enter_context(running("worker", *words, *joined, **env))
        until(lambda: command("worker", "list", **env).stdout.count("online") == 2, "both workers are online")
        done = command("task", "submit", "echo", "{}", "--wait", "--json", **env)
        assert '"cool"' in done.stdout, done.stdout + done.stderr


@contextmanager
def running(*words: str, **env: str) -> Iterator[None]:
    process = warm.Popen([OURS, *words], env={**os.environ, **env}, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)
