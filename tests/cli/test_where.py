"""To which server a command goes, and which key that server gets."""

import json
from pathlib import Path

import pytest

from gpu_orchestrator.cli import where
from gpu_orchestrator.cli.options import HERE, Server

UP, LOGIN, OTHER = "http://127.0.0.1:8137", "https://gpu.example:8000", "http://elsewhere.example:8000"


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """A machine with `up`'s file and `login`'s."""
    for folder, url, key in (("data", UP, "of-up"), ("config/gpu-orchestrator", LOGIN, "of-login")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "client.json").write_text(
            json.dumps({"url": url, "key": key, "ca": f"{key}.pem"})
        )
    (tmp_path / "key").write_text("of-file\n")
    (tmp_path / "other-key").write_text("of-other-file\n")
    return {"DATA_DIR": str(tmp_path / "data"), "XDG_CONFIG_HOME": str(tmp_path / "config")}


@pytest.mark.parametrize(
    ("environ", "given", "url", "key", "ca"),
    [
        pytest.param({}, HERE, LOGIN, "of-login", "of-login.pem", id="login goes before up"),
        pytest.param({"XDG_CONFIG_HOME": "/none"}, HERE, UP, "of-up", "of-up.pem", id="up"),
        pytest.param(
            {"XDG_CONFIG_HOME": "/none", "DATA_DIR": "/none"},
            HERE,
            where.DEFAULT_URL,
            "",
            "",
            id="nothing known",
        ),
        pytest.param({"GPU_ORCHESTRATOR_URL": UP}, HERE, UP, "of-up", "of-up.pem", id="the address of up"),
        pytest.param({"GPU_ORCHESTRATOR_URL": UP + "/"}, HERE, UP, "of-up", "of-up.pem", id="with a slash"),
        pytest.param({"GPU_ORCHESTRATOR_URL": OTHER}, HERE, OTHER, "", "", id="no stored key for another"),
        pytest.param(
            {"GPU_ORCHESTRATOR_URL": OTHER}, Server(url=UP), UP, "of-up", "of-up.pem", id="--url wins"
        ),
        pytest.param({"API_KEY": "of-env"}, HERE, LOGIN, "of-env", "of-login.pem", id="API_KEY"),
        pytest.param(
            {"API_KEY": "e"}, Server(key_file=Path("key")), LOGIN, "of-file", "of-login.pem", id="--key-file"
        ),
        pytest.param(
            {"API_KEY_FILE": "other-key"}, HERE, LOGIN, "of-other-file", "of-login.pem", id="API_KEY_FILE"
        ),
        pytest.param(
            {"GPU_ORCHESTRATOR_CA": "x.pem"}, HERE, LOGIN, "of-login", "x.pem", id="GPU_ORCHESTRATOR_CA"
        ),
        pytest.param(
            {"GPU_ORCHESTRATOR_CA": "x"}, Server(ca=Path("y")), LOGIN, "of-login", "y", id="--ca wins"
        ),
    ],
)
def test_command_line_then_environment_then_login_then_up(
    environ: dict[str, str],
    given: Server,
    url: str,
    key: str,
    ca: str,
    machine: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    found = where.find(given, {**machine, **environ})
    assert (found.url, found.key, found.ca) == (url, key, ca)


def test_env_file_counts_and_bad_settings_of_a_server_do_not(tmp_path: Path, machine: dict[str, str]) -> None:
    (tmp_path / ".env").write_text("TASK_TIMEOUT=abc\nAPI_KEY='of-dot-env'\n")
    assert where.find(HERE, machine, tmp_path / ".env").key == "of-dot-env"


@pytest.mark.parametrize(
    ("given", "environ", "words"),
    [
        (Server(url="gpu.example"), {}, "--url gpu.example is not an address; write for example https://"),
        (Server(url="ftp://gpu.example"), {}, "--url ftp://gpu.example is not an address"),
        (Server(url="http://h:99999"), {}, "--url http://h:99999 is not an address (Port out of range"),
        (Server(url="http://[::1"), {}, "is not an address"),
        (Server(url="http://ä.example"), {}, "has a character that no address has"),
        (HERE, {"GPU_ORCHESTRATOR_URL": "here"}, "GPU_ORCHESTRATOR_URL here is not an address"),
        (Server(key_file=Path("/none")), {}, "--key-file /none cannot be read: No such file"),
        (Server(key_file=Path("empty")), {}, "--key-file empty holds no key"),
        (Server(key_file=Path("two")), {}, "--key-file two holds more than a key"),
        (HERE, {"API_KEY": "kléy"}, "API_KEY holds more than a key, or not a key at all"),
    ],
)
def test_bad_values_are_named(
    given: Server,
    environ: dict[str, str],
    words: str,
    machine: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "two").write_text("one\ntwo\n")
    with pytest.raises(where.BadPlace) as caught:
        where.find(given, {**machine, **environ})
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": 3}', '{"url": "x"}', "\x00"])
def test_damaged_file_says_what_to_do(text: str, machine: dict[str, str]) -> None:
    (Path(machine["XDG_CONFIG_HOME"]) / "gpu-orchestrator" / "client.json").write_text(text)
    with pytest.raises(where.BadPlace, match=r"is damaged .*; remove it, then log in again"):
        where.find(HERE, machine)
