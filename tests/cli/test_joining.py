"""How a worker finds its server, token and name on the machine of its server."""

import json
import socket
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.settings import BadSettings
from gpu_orchestrator.apps.worker.settings import name_of
from gpu_orchestrator.cli import joining
from gpu_orchestrator.cli.joining import Access

HERE, OTHER = "http://127.0.0.1:8040", "http://manager:8000"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data directory of a server that runs on this machine."""
    (tmp_path / "client.json").write_text(json.dumps({"url": HERE, "key": "k", "ca": "/c.pem"}))
    (tmp_path / "worker-token").write_text("of this machine\n")
    for name in ("WORKER_TOKEN", "WORKER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_everything_is_found_on_the_machine_of_the_server(data: Path) -> None:
    assert joining.access() == Access((HERE,), "of this machine", "/c.pem")
    assert joining.access(["http://localhost:8040/"]).token == "of this machine"


def test_token_is_not_sent_to_another_server(data: Path) -> None:
    assert joining.access([OTHER]) == Access((OTHER,), "", "")


def test_given_token_wins(data: Path) -> None:
    assert joining.access(token="given").token == "given"
    (data / "mine").write_text("in a file\n")
    assert joining.access(token_file=data / "mine").token == "in a file"


def test_missing_token_file_says_where_the_token_is(data: Path) -> None:
    with pytest.raises(BadSettings) as caught:
        joining.access(token_file=Path("nowhere"))
    assert "--token-file nowhere cannot be read: no such file or directory; leave it out" in str(caught.value)
    assert str(data / "worker-token") in str(caught.value)


def test_machine_without_a_server_has_the_usual_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "none"))
    assert joining.access() == Access(("http://127.0.0.1:8000",), "")


def test_second_worker_of_a_machine_gets_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "a" * 70)
    with joining.name([HERE]) as first, joining.name([HERE]) as second, joining.name([OTHER]) as elsewhere:
        assert (first, second, elsewhere) == ("a" * 63, "a" * 61 + "-2", "a" * 63)
    with joining.name([HERE]) as again:
        assert again == first, "the name is free when its worker has ended"


def test_given_name_is_kept_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "joining-test")
    with joining.name([HERE], "joining-test") as given, joining.name([HERE], "joining-test") as twice:
        assert (given, twice) == ("joining-test", "joining-test"), "the server refuses the second"
        with joining.name(["http://localhost:8040"]) as other:
            assert other == "joining-test-2"


@pytest.mark.parametrize(
    ("host", "name"),
    [("gpu-box", "gpu-box"), ("ann's box", "ann-s-box"), ("-x-", "x"), ("ü", "worker"), ("a" * 80, "a" * 63)],
)
def test_name_of_a_host_is_a_valid_name(host: str, name: str) -> None:
    assert name_of(host) == name
