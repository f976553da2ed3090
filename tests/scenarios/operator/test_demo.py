"""`make demo` with piped output: the samples run, Ctrl-C ends it, and nothing is left."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.toolbox import Toolbox
from tests.support.paths import ROOT

PATIENCE_S = 150.0
IN_THE_BACKGROUND = ("sh", "-c", 'trap \'\' INT; exec "$0" "$@"')
"""Start with SIGINT ignored, as a shell does for `command &`. An explicit SIGINT must still end the demo."""


@pytest.fixture
def demo(toolbox: Toolbox) -> Iterator["subprocess.Popen[str]"]:
    command = [*IN_THE_BACKGROUND, sys.executable, "-u", str(ROOT / "scripts" / "demo.py"), "--nodes=4"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    yield process
    process.kill()
    process.wait(10)
    assert process.stdout
    process.stdout.close()


def test_samples_succeed_and_ctrl_c_leaves_nothing(demo: "subprocess.Popen[str]") -> None:
    assert demo.stdout
    too_late = threading.Timer(PATIENCE_S, demo.kill)  # ends the loop over its output
    too_late.start()
    seen: list[str] = []
    for line in demo.stdout:
        seen.append(line.strip())
        if sum(": Succeeded: " in each for each in seen) == 4:
            break
    too_late.cancel()
    assert sum(": Running: " in each for each in seen) == 4, seen
    assert any(each.startswith("claimed-model: Running: running on claim-node-0 (devices ") for each in seen)
    kubeconfig, kubectl = (
        next(each.partition("=")[2] for each in seen if each.startswith(start))
        for start in ("export KUBECONFIG=", "alias kubectl=")
    )
    assert Path(kubeconfig).exists()
    apply = next(each.split()[1:] for each in seen if each.startswith("kubectl apply -f "))
    command = [kubectl, "--kubeconfig", kubeconfig, *apply]
    applied = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "gpuworkload.gpu.warp.dev/my-model created" in applied  # beside the demo's own sample of that name
    too_late = threading.Timer(PATIENCE_S, demo.kill)
    too_late.start()
    assert any("default/my-model: Succeeded: " in line for line in demo.stdout)
    too_late.cancel()
    demo.send_signal(signal.SIGINT)
    assert demo.wait(60) == 0
    assert not Path(kubeconfig).parent.exists()
