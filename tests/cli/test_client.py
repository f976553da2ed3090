"""What a command prints, and to which server it sends a key."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from gpu_orchestrator.cli import client
from gpu_orchestrator.cli.plain import lines

HERE = "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    "words",
    ["[/x]", "[red]not red[/red]", "\x1b[2J\x1b]0;a title\x07", "two\r\nlines", "\u202eturned round"],
)
def test_foreign_text_is_shown_without_markup(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(client, "console", Console(file=written, color_system=None, width=200))
    client.show([], as_json=False, columns={"OBJECT": "object"}, rows=[{"object": words}])
    _, shown = written.getvalue().splitlines()
    assert shown.strip() == words.encode("unicode_escape").decode()


def test_message_keeps_its_lines() -> None:
    assert lines("one\n\x1b[2Jtwo") == "one\n\\x1b[2Jtwo"


@pytest.mark.parametrize(
    ("url", "key"),
    [
        pytest.param("", "local", id="the server of this machine"),
        pytest.param(HERE, "local", id="the same by name"),
        pytest.param(HERE + "/", "local", id="with a slash"),
        pytest.param("http://elsewhere.example:8000", "", id="another"),
    ],
)
def test_local_key_is_sent_to_the_local_server_only(
    url: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    monkeypatch.setenv("GPU_ORCHESTRATOR_URL", url)
    monkeypatch.delenv("API_KEY", raising=False)
    (tmp_path / "client.json").write_text(json.dumps({"url": HERE, "key": "local", "ca": ""}))
    found = client.where()
    assert (found.url.rstrip("/"), found.key) == ((url or HERE).rstrip("/"), key)
