"""Settings: where they come from, and the errors for bad values."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from gpu_orchestrator.adapters import setting_names, settings
from gpu_orchestrator.adapters.settings import BadSettings, Settings
from tests.support.paths import ROOT

KEY = "k" * 32


def load(**environ: str) -> Settings:
    return settings.load(environ, Path("/nowhere"))


def test_command_line_wins_over_environment_and_environment_over_file(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("# ports\nAPI_PORT=1\nMAX_WORKERS='2'\nexport TASK_TIMEOUT=3\nUNKNOWN=4\n")
    chosen = settings.load({"API_PORT": "10", "MAX_WORKERS": "20"}, file, api_port=100)
    assert (chosen.api_port, chosen.max_workers, chosen.task_timeout) == (100, 20, 3)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"API_PORT": "http"}, "API_PORT=http is not allowed: give a whole number from 0 to 65535"),
        ({"API_PORT": "70000"}, "API_PORT=70000 is not allowed"),
        ({"API_PORT": "8000.0"}, "API_PORT=8000.0 is not allowed"),
        ({"DURABILITY": " strict"}, "DURABILITY= strict is not allowed: give normal or strict"),
        ({"LOG_LEVEL": "loud"}, "give DEBUG or INFO or WARNING or ERROR"),
        ({"TASK_TIMEOUT": "nan"}, "TASK_TIMEOUT=nan is not allowed: give a number from 1 to 604800"),
        ({"CALLBACK_NETWORKS": "10.1"}, "CALLBACK_NETWORKS=10.1 is not allowed: give networks such as"),
        ({"RATE_LIMIT_ROUTES": "fast"}, "RATE_LIMIT_ROUTES=fast is not allowed: give such as POST /tasks"),
        ({"MAX_REQUEST_MB": "64"}, "MAX_REQUEST_MB=64 is not allowed: give a number from 0.01 to 32"),
        ({"RESTART_GRACE": "-1"}, "RESTART_GRACE=-1 is not allowed: give a number from 0 to 3600"),
        ({"GPU_MEMORY_THRESHOLD": "1.5"}, "give a number from 0.05 to 1"),
        ({"METRICS_AUTH": "maybe"}, "METRICS_AUTH=maybe is not allowed: give true or false"),
        ({"DURABILITY": "some"}, "give normal or strict"),
        ({"API_KEY": "short"}, "API_KEY has 5 characters: give 32 or more"),
        ({"REDIS_URL": "http://:hidden@x"}, "REDIS_URL begins with http, which is not allowed"),
        ({"REDIS_URL": "sentinel://:hidden@x"}, "REDIS_URL does not name the primary"),
        ({"REDIS_SENTINELS": "a:26379"}, "REDIS_SENTINELS and REDIS_SENTINEL_MASTER go together"),
        ({"REDIS_HOST": "db", "REDIS_CA_PATH": "a.pem"}, "REDIS_CA_PATH: only a store with TLS takes this"),
        ({"REDIS_URL": "rediss://db", "REDIS_CA_PATH": "/nowhere"}, "has files for TLS that cannot be used"),
        ({"DURABILITY_REPLICAS": "1"}, "DURABILITY_REPLICAS=1 needs DURABILITY=strict"),
        ({"WORKER_TOKEN": "short"}, "WORKER_TOKEN has 5 characters: give 32 or more"),
        ({"SSL_CERT_PATH": "a.pem"}, "SSL_CERT_PATH and SSL_KEY_PATH go together"),
        ({"SSL_KEY_PATH": "a.pem"}, "SSL_CERT_PATH and SSL_KEY_PATH go together"),
        ({"RESULTS_S3_BUCKET": "b"}, "RESULTS_S3_ENDPOINT and RESULTS_S3_BUCKET go together"),
        (
            {"RESULTS_S3_BUCKET": "b", "RESULTS_S3_ENDPOINT": "https://s3.example"},
            "RESULTS_S3_BUCKET=b needs RESULTS_S3_ACCESS_KEY and RESULTS_S3_SECRET_KEY: give both",
        ),
        (
            {
                "RESULTS_S3_BUCKET": "b",
                "RESULTS_S3_ENDPOINT": "s3.example",
                "RESULTS_S3_ACCESS_KEY": "a",
                "RESULTS_S3_SECRET_KEY": "s",
            },
            "RESULTS_S3_ENDPOINT=s3.example is not allowed: give an address that begins with https://",
        ),
        ({"CORS_ORIGINS": "dashboard.example"}, "give origins such as https://dashboard.example"),
        ({"CORS_ORIGINS": "https://a.example/app"}, "give origins such as https://dashboard.example"),
        ({"WORKER_TOKEN_FILE": "/dev/null"}, "WORKER_TOKEN_FILE=/dev/null cannot be used: it is empty"),
        ({"API_KEY_FILE": "/nowhere"}, "API_KEY_FILE=/nowhere cannot be read: no such file"),
    ],
)
def test_bad_value_error_names_variable_value_and_what_is_allowed(
    environ: dict[str, str], message: str
) -> None:
    with pytest.raises(BadSettings, match=re.escape(message)):
        settings.load(environ, Path("/nowhere"))


@pytest.mark.parametrize(
    ("environ", "field", "value"),
    [
        *(({"METRICS_AUTH": word}, "metrics_auth", True) for word in ("true", "True", "1", "yes", "ON")),
        *(({"METRICS_AUTH": word}, "metrics_auth", False) for word in ("false", "0", "no", "Off")),
        ({"API_PORT": " 80 "}, "api_port", 80),
        ({"TASK_TIMEOUT": "1.5"}, "task_timeout", 1.5),
        ({"GPU_MEMORY_THRESHOLD": ".8"}, "gpu_memory_threshold", 0.8),
        ({"QUOTA_QUEUED_TASKS": "1_000"}, "quota_queued_tasks", 1000),
        ({"API_PORT": "08000"}, "api_port", 8000),
        ({"REDIS_PASSWORD": " 12 "}, "redis_password", " 12 "),
        ({"CORS_ORIGINS": "https://a.example, *,"}, "cors_origins", ("https://a.example", "*")),
        ({"DATA_DIR": "~/x"}, "data_dir", str(Path("~/x").expanduser())),
        ({"DATA_DIR": "x"}, "data_dir", str(Path("x").absolute())),
    ],
)
def test_value_is_read_as_people_write_it(environ: dict[str, str], field: str, value: object) -> None:
    assert getattr(load(**environ), field) == value


@pytest.mark.parametrize("given", ["x", "./x", "y/../x"])
def test_data_directory_of_the_command_line_is_made_absolute(given: str) -> None:
    assert settings.load({}, Path("/nowhere"), data_dir=given).data_dir == str(Path("x").absolute())


def test_one_error_lists_all_bad_values() -> None:
    with pytest.raises(BadSettings) as caught:
        load(API_PORT="x", MAX_WORKERS="y")
    assert len(str(caught.value).splitlines()) == 2


def test_every_secret_can_come_from_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"redis://{KEY}\n")
    names = settings.SECRETS
    store = ("redis_url", "redis_password", "redis_sentinel_password")
    s3 = ("results_s3_access_key", "results_s3_secret_key")
    celery = ("celery_broker_url", "celery_result_backend")
    assert names == ("api_key", "worker_token", *store, *s3, *celery, "callback_secret")
    token = tmp_path / "token"
    token.write_text(f"{KEY}-of-workers\n")
    given = {f"{name.upper()}_FILE": str(secret) for name in names}
    chosen = load(**{**given, "WORKER_TOKEN_FILE": str(token)})
    assert chosen.worker_token == f"{KEY}-of-workers"
    assert {getattr(chosen, name) for name in names if name != "worker_token"} == {f"redis://{KEY}"}
    assert KEY not in repr(chosen)


def test_sentinels_are_part_of_the_store_address() -> None:
    chosen = load(
        REDIS_SENTINELS="a:1, b",
        REDIS_SENTINEL_MASTER="main",
        REDIS_SENTINEL_PASSWORD="s&p",
        REDIS_PASSWORD="p@ss",
        REDIS_TLS="true",
        REDIS_SERVER_NAME="db.example",
    )
    expected = "sentinels://:p%40ss@a:1,b/main?sentinel_password=s%26p&server_name=db.example"
    assert chosen.external_store == expected


def test_password_is_part_of_the_store_address(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p@ss\n")
    chosen = load(REDIS_HOST="db", REDIS_PASSWORD_FILE=str(tmp_path / "password"))
    assert chosen.external_store == "redis://:p%40ss@db:6379/0"


def test_error_for_a_bad_secret_does_not_show_it() -> None:
    with pytest.raises(BadSettings) as caught:
        load(REDIS_URL="http://:hidden@x")
    assert "hidden" not in str(caught.value)


def test_store_address_is_empty_without_a_store() -> None:
    assert load().external_store == ""


def test_env_example_shows_every_setting_with_its_default() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    shown = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert sorted(shown) == sorted(each.name.upper() for each in fields(Settings))
    assert settings.load(shown, Path("/nowhere")) == Settings()


@pytest.mark.parametrize(
    ("in_file", "around", "said"),
    [
        pytest.param({"API_PROT": "1"}, {}, ["API_PROT is not a setting; did you mean API_PORT?"], id="file"),
        pytest.param(
            {}, {"API_PROT": "1"}, ["API_PROT is not a setting; did you mean API_PORT?"], id="around"
        ),
        pytest.param({"MAX_RETRY": "1"}, {"MAX_RETRY": "1"}, ["did you mean MAX_RETRIES?"], id="both"),
        pytest.param({}, {"GPU_ORCHESTRATOR_ULR": ""}, ["did you mean GPU_ORCHESTRATOR_URL?"], id="client"),
        pytest.param({"API_PORT": "1"}, {"MAX_CONCURRENT_TASKS": "2"}, [], id="known"),
        pytest.param(
            {"RATE_LIMIT_DAILY": "1"}, {}, ["RATE_LIMIT_DAILY is not a setting"], id="file, of a family"
        ),
        pytest.param({}, {"RATE_LIMIT_DAILY": "1"}, [], id="around, only of a family"),
        pytest.param({"REDIS_URI": "x"}, {"REDIS_URL": "redis://x"}, [], id="the setting is given beside it"),
        pytest.param(
            {"MODEL_CACHE_SIZE": "5", "CELERY_TASK_TIMEOUT": "1", "WORKER_PROCESSES": "4"}, {}, [], id="seed"
        ),
        pytest.param(
            {"EDITOR": "vi", "POSTGRES_PORT": "1"},
            {"PATH": "", "REDIS_SERVICE_PORT": "1", "LOGNAME": "ann", "DATABASE_URL": "x"},
            [],
            id="of other programs",
        ),
    ],
)
def test_misspelt_names_are_found(
    in_file: dict[str, str], around: dict[str, str], said: list[str], tmp_path: Path
) -> None:
    file = tmp_path / ".env"
    file.write_text("".join(f"{name}={value}\n" for name, value in in_file.items()))
    found = setting_names.slips(around, file)
    assert len(found) == len(said)
    assert all(words in line for words, line in zip(said, found, strict=True))


def test_slips_are_refused(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MAX_RETRY=1\nAPI_PROT=2\n")
    with pytest.raises(BadSettings, match="did you mean MAX_RETRIES") as caught:
        setting_names.refuse_slips({}, tmp_path / ".env")
    assert "did you mean API_PORT?" in str(caught.value)
    assert "remove them from .env or the environment" in str(caught.value)
    setting_names.refuse_slips({"PATH": ""}, tmp_path / "none")


def test_settings_without_effect_are_named_once(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("DEBUG=1\nAPI_PORT=1\nCELERY_TASK_TIMEOUT=1\n")
    said = setting_names.without_effect(file)
    assert said == f"DEBUG, CELERY_TASK_TIMEOUT in {file} have no effect in this version"
    assert setting_names.without_effect(tmp_path / "none") == ""


@pytest.mark.parametrize(
    ("line", "value"),
    [
        pytest.param("API_HOST=db # the other machine", "db", id="comment"),
        pytest.param("API_HOST=db#1", "db#1", id="no space before it"),
        pytest.param("API_HOST='a # b' # c", "a # b", id="quoted"),
        pytest.param('API_HOST="a"#c', "a", id="after the quote"),
        pytest.param("API_HOST=   # nothing", "127.0.0.1", id="only a comment"),
        pytest.param("export  API_HOST=db", "db", id="export"),
        pytest.param("API_HOST=it's", "it's", id="one quote"),
        pytest.param("API_HOST=\"a' # b", "\"a'", id="quotes that do not match"),
    ],
)
def test_comments_after_values_are_left_out(line: str, value: str, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(line + "\n")
    assert settings.load({}, tmp_path / ".env").api_host == value


def test_bad_setting_does_not_fail_those_that_need_others() -> None:
    chosen = settings.load({"TASK_TIMEOUT": "abc", "DATA_DIR": "/x"}, Path("/nowhere"), only=("data_dir",))
    assert chosen.data_dir == "/x"


def test_bad_option_is_named_as_it_was_given() -> None:
    with pytest.raises(BadSettings, match="--port 99999 is not allowed: give a whole number from 0 to 65535"):
        settings.load({}, Path("/nowhere"), api_port=99999)


def test_token_of_workers_is_not_the_key_of_the_administrator(tmp_path: Path) -> None:
    same = {"API_KEY": "k" * 64, "WORKER_TOKEN": "k" * 64}
    with pytest.raises(BadSettings, match="API_KEY and WORKER_TOKEN are the same"):
        settings.load(same, tmp_path / "none")
