"""`gpu-orchestrator doctor` in this process, and what it says."""

import os
from pathlib import Path

from tests.support.command_line import in_this_process
from tests.support.paths import ROOT


def doctor(config: Path | str, *words: str) -> tuple[int, list[str], list[str]]:
    """Return the exit code, the lines of passed checks and the lines of failed checks."""
    done = in_this_process(["doctor", "--kubeconfig", str(config), *words], ROOT, os.environ)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


def of_walls(found: list[str]) -> list[str]:
    """Return what was found of webhook, policies and priorities, without its mark."""
    return [line[8:] for line in found if line[8:].startswith(("webhook:", "policies:", "namespace "))]
