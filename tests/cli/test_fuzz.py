"""Random command lines in this process, with no server there: no traceback, a known exit code, a message."""

import io
from pathlib import Path

import pytest

from controlplane.cluster import free_port
from gpu_orchestrator.cli import main
from tests.support import command_lines

CODES = {0, 1, 2, 130}


@pytest.mark.parametrize("seed", range(10))
def test_any_command_line_ends_with_a_message(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("API_KEY", "API_KEY_FILE", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "XDG_CONFIG_HOME", "DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("GPU_ORCHESTRATOR_URL", f"http://127.0.0.1:{free_port()}")
    for words in command_lines.lines(seed, 10):
        monkeypatch.setattr("sys.stdin", io.StringIO(""))
        with pytest.raises(SystemExit) as ended:
            main.run(words)
        code, told = ended.value.code or 0, capsys.readouterr()
        assert code in CODES, words
        assert code == 0 or told.err.strip(), words
        assert all(line.isprintable() for line in told.err.splitlines()), words
