"""Celery is an extra: a server and workers without it never import it, and say so if it is asked for."""

import subprocess
import sys

import pytest

from gpu_orchestrator.adapters.settings import BadSettings, Settings
from gpu_orchestrator.apps.manager import server

pytestmark = pytest.mark.real
PROGRAM = """
import sys
import gpu_orchestrator.apps.manager.server
import gpu_orchestrator.apps.worker.agent
import gpu_orchestrator.cli.own_worker
print(sorted({"billiard", "celery", "flower", "kombu", "redis"} & sys.modules.keys()))
"""


def test_server_and_native_worker_do_not_import_celery() -> None:
    assert subprocess.check_output([sys.executable, "-c", PROGRAM], text=True).strip() == "[]"


def test_server_without_celery_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "find_spec", lambda _: None)
    assert server._broker(Settings(), "unix:///s") is None
    with pytest.raises(BadSettings, match="pip install"):
        server._broker(Settings(executor="celery"), "unix:///s")
