"""Settings: where they come from, and what is said of bad ones."""

import re
from pathlib import Path

import pytest

from gpu_orchestrator.adapters import settings
from gpu_orchestrator.adapters.settings import BadSettings, Settings

ROOT = Path(__file__).parent.parent.parent
KEY = "k" * 32


def load(**environ: str) -> Settings:
    return settings.load(environ, Path("/nowhere"))


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("# ports\nAPI_PORT=1\nMAX_WORKERS='2'\nexport TASK_TIMEOUT=3\nUNKNOWN=4\n")
    chosen = settings.load({"API_PORT": "10", "MAX_WORKERS": "20"}, file, api_port=100)
    assert (chosen.api_port, chosen.max_workers, chosen.task_timeout) == (100, 20, 3)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"API_PORT": "http"}, "API_PORT=http is not allowed: give a whole number from 0 to 65535"),
        ({"API_PORT": "70000"}, "API_PORT=70000 is not allowed"),
        ({"GPU_MEMORY_THRESHOLD": "1.5"}, "give a number from 0.05 to 1"),
        ({"METRICS_AUTH": "maybe"}, "METRICS_AUTH=maybe is not allowed: give true or false"),
        ({"DURABILITY": "some"}, "give normal or strict"),
        ({"API_KEY": "short"}, "API_KEY has 5 characters: give 32 or more"),
        ({"REDIS_URL": "http://x"}, "begin with redis://"),
        ({"API_KEY_FILE": "/nowhere"}, "API_KEY_FILE=/nowhere is not allowed: No such file"),
    ],
)
def test_a_bad_value_names_the_variable_the_value_and_what_is_allowed(
    environ: dict[str, str], said: str
) -> None:
    with pytest.raises(BadSettings, match=re.escape(said)):
        settings.load(environ, Path("/nowhere"))


def test_all_bad_values_are_told_at_once() -> None:
    with pytest.raises(BadSettings) as caught:
        load(API_PORT="x", MAX_WORKERS="y")
    assert len(str(caught.value).splitlines()) == 2


def test_secrets_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    (tmp_path / "password").write_text("p@ss\n")
    chosen = load(
        API_KEY_FILE=str(tmp_path / "key"),
        REDIS_HOST="db",
        REDIS_PASSWORD_FILE=str(tmp_path / "password"),
    )
    assert chosen.api_key == KEY
    assert chosen.external_store == "redis://:p%40ss@db:6379/0"


def test_without_a_store_there_is_none() -> None:
    assert load().external_store == ""


def test_the_example_shows_every_setting_with_its_default() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    shown = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert sorted(shown) == sorted(settings.defaults())
    assert settings.load(shown, Path("/nowhere")) == Settings()
