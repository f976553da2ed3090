"""`make cluster` as a user runs it: the printed commands work, and Ctrl-C leaves nothing behind."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane import watchdog
from tests.support.scheduler_stage import until

UP = [sys.executable, "-m", "controlplane", "up", "--nodes", "2", "--gpus", "4"]


@pytest.fixture
def up(toolbox: object) -> Iterator["subprocess.Popen[str]"]:
    # As a shell starts a background command: SIGINT is ignored. `up` must end on SIGINT all the same.
    command = ["sh", "-c", 'trap \'\' INT; exec "$0" "$@"', *UP]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        yield process
        process.kill()


def test_printed_commands_work_and_ctrl_c_ends_the_cluster(up: "subprocess.Popen[str]") -> None:
    printed = ""
    for line in up.stdout or ():
        printed += line
        if "Ctrl-C ends" in line:
            break
    found = re.search(r"export KUBECONFIG=(\S+)\n\s+alias kubectl=(\S+)", printed)
    assert found, printed
    kubeconfig, kubectl = found.groups()
    listed = subprocess.run(
        [kubectl, "--kubeconfig", kubeconfig, "get", "nodes"], capture_output=True, text=True
    )
    assert len(re.findall(r"gpu-node-\d +Ready", listed.stdout)) == 2, listed
    run_ours(printed, kubectl, kubeconfig)

    mark = _mark_of_a_child(up.pid)
    up.send_signal(signal.SIGINT)
    rest, _ = up.communicate(timeout=60)
    assert up.returncode == 0
    assert "nothing is left behind" in rest
    assert not watchdog.marked(mark)
    assert not Path(kubeconfig).parent.exists()


def run_ours(printed: str, kubectl: str, kubeconfig: str) -> None:
    """Run the printed commands for operator and scheduler, and check that both take the lead."""
    install, *processes = re.findall(r"^  (/.*(?:config/local|--kubeconfig .* 0))$", printed, re.MULTILINE)
    subprocess.run(install.split(), check=True, capture_output=True)
    started = [subprocess.Popen(each.split(), stderr=subprocess.DEVNULL) for each in processes]
    try:
        leases = [
            kubectl,
            "--kubeconfig",
            kubeconfig,
            "get",
            "leases",
            "-n",
            "gpu-orchestrator-system",
            "-o",
            "name",
        ]
        names = ("gpu-orchestrator.gpu.warp.dev", "gpu-scheduler.gpu.scheduling")
        wanted = {f"lease.coordination.k8s.io/{name}" for name in names}
        until(lambda: wanted <= set(output(leases).split()), "both processes lead")
    finally:
        for each in started:
            each.terminate()
            each.wait(30)
    assert [each.returncode for each in started] == [0, 0]


def output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout


def test_invalid_count_is_reported() -> None:
    done = subprocess.run([*UP[:4], "--nodes", "many"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "'many' is not a whole number of 0 or more" in done.stderr


def _mark_of_a_child(pid: int) -> str:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        environ = Path(f"/proc/{child}/environ").read_bytes().decode()
        if found := re.search(rf"{watchdog.MARK}=(\w+)", environ):
            return found[1]
    raise AssertionError("no child carries a mark")
