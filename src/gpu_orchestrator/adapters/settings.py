"""Settings of the cluster manager, from the environment and a `.env` file; the environment wins.

A setting's name is the field's in capitals, its type says what is allowed, and msgspec checks it. A bad value
is an error that names the variable, the value and what is allowed; one error lists all bad values.
`BadSettings` is shared with the scheduler and the worker.
"""

import os
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta, inspect

from gpu_orchestrator.adapters import store_address
from gpu_orchestrator.api.rates import by_route

SHORTEST_KEY = 32
DATA_DIR = "~/.local/share/gpu-orchestrator"
OPTIONS = {
    "api_host": "--host",
    "api_port": "--port",
    "data_dir": "--data",
    "worker_processes": "--processes",
}
"""Settings that the command line can give, and how."""
_QUOTED = re.compile(r"""(['"])(.*?)\1\s*(?:#.*)?$""")
_COMMENT = re.compile(r"(^|\s+)#.*$")
FLAGS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}

File = Annotated[str, Meta(description="a file that can be read")]
Folder = Annotated[str, Meta(description="a folder that can be written")]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Seconds = Annotated[float, Meta(ge=1, le=3600)]
UpToAWeek = Annotated[float, Meta(ge=0, le=604_800)]
Part = Annotated[float, Meta(ge=0.05, le=1)]
Millions = Annotated[int, Meta(ge=0, le=1_000_000)]
Billions = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Origin = Annotated[str, Meta(pattern=r"^(\*|https?://[A-Za-z0-9.\-\[\]:]+)$")]
Origins = Annotated[
    tuple[Origin, ...],
    Meta(description="origins such as https://dashboard.example, separated by commas, or *"),
]


class BadSettings(ValueError):
    """A setting of any process cannot be used. The message has one line per setting, with what to write."""


def _secret() -> str:
    """A setting that is never shown. Better than the value itself is a file: NAME_FILE instead of NAME."""
    return field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Settings:
    """See `.env.example` for what each setting is for."""

    api_host: Annotated[str, Meta(description="an address of this machine")] = "127.0.0.1"
    api_port: Port = 8000
    worker_processes: Annotated[int, Meta(ge=1, le=64)] = 1
    api_key: str = _secret()
    api_key_file: File = ""
    worker_token: str = _secret()
    worker_token_file: File = ""
    ssl_cert_path: File = ""
    ssl_key_path: File = ""
    cors_origins: Origins = ()
    secrets_key_file: File = ""
    redis_url: str = _secret()
    redis_url_file: File = ""
    redis_host: Annotated[str, Meta(description="a host name")] = ""
    redis_port: Annotated[int, Meta(ge=1, le=65_535)] = 6379
    redis_db: Annotated[int, Meta(ge=0, le=15)] = 0
    redis_password: str = _secret()
    redis_password_file: File = ""
    redis_tls: bool = False
    redis_ca_path: File = ""
    redis_cert_path: File = ""
    redis_key_path: File = ""
    redis_server_name: Annotated[str, Meta(description="the name in the store's certificate")] = ""
    redis_sentinels: Annotated[
        str, Meta(description="hosts and ports of Sentinels, such as a:26379,b:26379, separated by commas")
    ] = ""
    redis_sentinel_master: Annotated[str, Meta(description="the name of the primary at the Sentinels")] = ""
    redis_sentinel_password: str = _secret()
    redis_sentinel_password_file: File = ""
    durability: Literal["normal", "strict"] = "normal"
    durability_replicas: Annotated[int, Meta(ge=0, le=16)] = 0
    data_dir: Folder = field(default_factory=lambda: str(Path(DATA_DIR).expanduser()))
    max_workers: Annotated[int, Meta(ge=1, le=10_000)] = 10
    task_timeout: Annotated[float, Meta(ge=1, le=604_800)] = 300
    task_soft_time_limit: UpToAWeek = 270
    max_retries: Annotated[int, Meta(ge=0, le=100)] = 3
    max_lost_workers: Annotated[int, Meta(ge=1, le=100)] = 2
    task_retention: Annotated[float, Meta(ge=60, le=31_536_000)] = 86_400
    task_retention_count: Billions = 1_000_000
    result_inline_kb: Annotated[float, Meta(ge=1, le=8192)] = 64
    result_shown_kb: Annotated[float, Meta(ge=1, le=65_536)] = 8192
    results_dir: Folder = ""
    results_mb: Annotated[float, Meta(ge=0, le=1_000_000_000)] = 0
    results_s3_endpoint: Annotated[str, Meta(description="an address such as https://s3.example.org")] = ""
    results_s3_bucket: Annotated[str, Meta(description="the name of a bucket")] = ""
    results_s3_prefix: Annotated[str, Meta(description="the beginning of the names of objects")] = ""
    results_s3_region: Annotated[str, Meta(description="a region such as eu-central-1")] = "us-east-1"
    results_s3_access_key: str = _secret()
    results_s3_access_key_file: File = ""
    results_s3_secret_key: str = _secret()
    results_s3_secret_key_file: File = ""
    file_mb: Annotated[float, Meta(ge=0, le=5000)] = 1024
    files_mb: Annotated[float, Meta(ge=0, le=1_000_000_000)] = 10_240
    task_log_kb: Annotated[int, Meta(ge=0, le=16_384)] = 256
    task_values_kb: Annotated[int, Meta(ge=0, le=65_536)] = 4096
    task_logs_mb: Annotated[float, Meta(ge=0, le=1_000_000)] = 256
    heartbeat_interval: Seconds = 30
    worker_lease: Seconds = 10
    restart_grace: Annotated[float, Meta(ge=0, le=3600)] = 60
    worker_retention: Annotated[float, Meta(ge=60, le=31_536_000)] = 86_400
    worker_registration_timeout: Seconds = 60
    gpu_memory_threshold: Part = 0.8
    gpu_memory_headroom: Annotated[int, Meta(ge=0, le=1_048_576)] = 256
    gpu_temperature_alert: Annotated[float, Meta(ge=1, le=200)] = 85
    gpu_memory_alert: Part = 0.95
    circuit_failures: Annotated[float, Meta(ge=0, le=1)] = 0.6
    circuit_window: Seconds = 60
    circuit_pause: Seconds = 30
    model_max_wait: Annotated[float, Meta(ge=1, le=604_800)] = 60
    model_preload: bool = True
    model_min_loaded: Annotated[float, Meta(ge=0, le=86_400)] = 0
    reservations: Annotated[int, Meta(ge=0, le=64)] = 4
    holds: Annotated[int, Meta(ge=0, le=64)] = 2
    reserve_after: Annotated[float, Meta(ge=1, le=604_800)] = 300
    hold_time: Annotated[float, Meta(ge=1, le=86_400)] = 600
    auto_scale_enabled: bool = True
    auto_scale_provisioner: Literal["none", "local", "command", "kubernetes"] = "none"
    auto_scale_label: Annotated[str, Meta(description="a label of workers, such as autoscaled=true")] = (
        "autoscaled=true"
    )
    auto_scale_pool: Annotated[str, Meta(description="the pool of the workers")] = ""
    auto_scale_min_workers: Annotated[int, Meta(ge=0, le=10_000)] = 0
    auto_scale_target_wait: Annotated[float, Meta(ge=0.1, le=86_400)] = 30
    auto_scale_patience: Annotated[float, Meta(ge=0, le=86_400)] = 10
    auto_scale_idle: Annotated[float, Meta(ge=0, le=604_800)] = 300
    auto_scale_cool_down: Annotated[float, Meta(ge=0, le=86_400)] = 60
    auto_scale_step: Annotated[int, Meta(ge=1, le=1000)] = 4
    auto_scale_interval: Annotated[float, Meta(ge=0.05, le=3600)] = 5
    auto_scale_command: Annotated[str, Meta(description="a program and its arguments")] = ""
    auto_scale_deployment: Annotated[str, Meta(description="namespace/name of a Deployment")] = ""
    auto_scale_worker_options: Annotated[str, Meta(description="options of `gpu-orchestrator worker`")] = ""
    auto_scale_worker_gpus: Annotated[int, Meta(ge=0, le=64)] = 1
    executor: Literal["native", "celery"] = "native"
    celery_broker_url: str = _secret()
    celery_broker_url_file: File = ""
    celery_result_backend: str = _secret()
    celery_result_backend_file: File = ""
    placement_policy: Annotated[str, Meta(description="the name of a policy")] = "balanced"
    max_request_mb: Annotated[float, Meta(ge=0.01, le=32)] = 8
    callback_hosts: Annotated[str, Meta(description="host names separated by commas, or *")] = ""
    callback_networks: Annotated[
        str, Meta(description="networks such as 10.1.0.0/16, separated by commas")
    ] = ""
    callback_secret: str = _secret()
    callback_secret_file: File = ""
    audit_keep: Annotated[int, Meta(ge=100, le=100_000_000)] = 100_000
    rate_limit_per_minute: Millions = 100
    rate_limit_per_hour: Billions = 1000
    rate_limit_routes: Annotated[
        str, Meta(description="such as POST /tasks=300/m,5000/h; GET /tasks/{task_id}=none")
    ] = ""
    quota_queued_tasks: Billions = 10_000
    quota_running_tasks: Millions = 0
    quota_gpu_seconds_per_day: Billions = 0
    max_queued_tasks: Annotated[int, Meta(ge=1, le=100_000_000)] = 100_000
    max_schedules: Annotated[int, Meta(ge=0, le=10_000)] = 100
    schedule_min_interval: Annotated[float, Meta(ge=1, le=86_400)] = 5
    max_store_mb: Annotated[float, Meta(ge=0, le=100_000_000)] = 0
    metrics_auth: bool = False
    events_kept: Annotated[int, Meta(ge=100, le=10_000_000)] = 50_000
    max_watchers: Annotated[int, Meta(ge=0, le=100_000)] = 1000
    max_connections: Annotated[int, Meta(ge=16, le=1_000_000)] = 4096
    max_connections_per_address: Annotated[int, Meta(ge=8, le=1_000_000)] = 1024
    request_head_timeout: Seconds = 30
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["auto", "json", "text"] = "auto"
    log_file: Annotated[str, Meta(description="a file that can be written")] = ""
    log_file_mb: Annotated[float, Meta(ge=0.001, le=100_000)] = 50
    log_files_kept: Annotated[int, Meta(ge=0, le=1000)] = 5

    @property
    def external_store(self) -> str:
        """The address of the configured store; empty if the embedded one is used."""
        return store_address.url_of(self)


def load(
    environ: Mapping[str, str] | None = None,
    env_file: Path = Path(".env"),
    *,
    only: Collection[str] = (),
    **given: Any,
) -> Settings:
    """Read the settings. `given` (the command line) wins over the environment, which wins over the file.

    With `only`, read just these and leave the rest at their defaults: a command that needs two settings
    should not fail because of a third."""
    values = {**_read_file(env_file), **(os.environ if environ is None else environ)}
    wrong: list[str] = []
    found: dict[str, Any] = {}
    for each in fields(Settings):
        if only and each.name not in only:
            continue
        name, value = each.name.upper(), given.get(each.name)
        shown = f"{name}={values.get(name)}" if value is None else f"{OPTIONS.get(each.name, name)} {value}"
        try:
            if value is not None:
                found[each.name] = _whole(each.name, msgspec.convert(value, TYPES[each.name]))
            elif values.get(name, "") != "":
                found[each.name] = _whole(each.name, _converted(each.name, values[name]))
        except (ValueError, msgspec.ValidationError):
            wrong.append(f"{shown} is not allowed: give {_allowed(TYPES[each.name])}")
    wrong += _secrets(found)
    if wrong:
        raise BadSettings("\n".join(wrong))
    return _checked(Settings(**found))


FOLDERS = ("data_dir", "results_dir")
TYPES = get_type_hints(Settings, include_extras=True)
SECRETS = tuple(each.name for each in fields(Settings) if not each.repr)
CHECKS: dict[str, Callable[[str], object]] = {
    "callback_networks": lambda value: [ip_network(each.strip()) for each in value.split(",")],
    "rate_limit_routes": by_route,
}
"""What a type cannot say; raises ValueError."""


def _converted(name: str, text: str) -> Any:
    if name in CHECKS:
        CHECKS[name](text)
    return msgspec.convert(_value(inspect.type_info(TYPES[name]), text), TYPES[name])


def _whole(name: str, value: Any) -> Any:
    """Make folders absolute: other processes use them, from other folders."""
    return os.path.abspath(os.path.expanduser(value)) if value and name in FOLDERS else value


def _value(kind: inspect.Type, text: str) -> Any:
    """Return the text as a value; msgspec then checks its range or choice."""
    match kind:
        case inspect.IntType():
            return int(text)
        case inspect.FloatType():
            return float(text)
        case inspect.BoolType():
            return FLAGS.get(text.lower())
        case inspect.Metadata(type=inspect.VarTupleType()):
            return tuple(each.strip() for each in text.split(",") if each.strip())
    return text


def _allowed(kind: Any) -> str:
    match inspect.type_info(kind):
        case inspect.IntType(ge=least, le=most):
            return f"a whole number from {least} to {most}"
        case inspect.FloatType(ge=least, le=most):
            return f"a number from {least:g} to {most:g}"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType():
            return " or ".join(get_args(kind))
        case inspect.Metadata(extra_json_schema={"description": text}):
            return str(text)
    return "any text"


def env_file_values(path: Path) -> dict[str, str]:
    """Return what a `.env` file says, unchecked: a client does not judge the settings of a server."""
    return _read_file(path)


def _read_file(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadSettings(f"{path} cannot be read: {error.strerror}") from error
    pairs = (line.partition("=") for line in lines if line.strip() and not line.lstrip().startswith("#"))
    return {
        name.strip().removeprefix("export ").strip(): _unquoted(value.strip()) for name, _, value in pairs
    }


def _unquoted(value: str) -> str:
    """Return the value without its quotes or its comment. As in dotenv, a comment begins with a # after a
    space, or anywhere after the closing quote."""
    if quoted := _QUOTED.match(value):
        return quoted[2]
    return _COMMENT.sub("", value)


def _secrets(found: dict[str, Any]) -> list[str]:
    """Read the secrets that are given as files into `found`; return one line per file that fails."""
    wrong = []
    for name in SECRETS:
        path = found.get(f"{name}_file")
        if path and not found.get(name):
            try:
                found[name] = read_secret(Path(path))
            except (OSError, ValueError) as error:
                wrong.append(f"{name.upper()}_FILE={path} {why_unreadable(error)}; give a file to read")
    return wrong


def why_unreadable(error: OSError | ValueError) -> str:
    """Return what is wrong with a file, to follow its name: `cannot be read: no such file or directory`."""
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror[0].lower()}{error.strerror[1:]}"
    return f"cannot be used: {error}"


def read_secret(path: Path) -> str:
    """Return the file's text without surrounding whitespace. An empty file is an error, because it would
    silently mean "no secret"."""
    secret = path.read_text().strip()
    if not secret:
        raise ValueError("it is empty")
    return secret


def _checked(settings: Settings) -> Settings:
    for name, secret in (("API_KEY", settings.api_key), ("WORKER_TOKEN", settings.worker_token)):
        if secret and len(secret) < SHORTEST_KEY:
            raise BadSettings(
                f"{name} has {len(secret)} characters: give {SHORTEST_KEY} or more, "
                "for example from `openssl rand -hex 32`, or leave it empty to have one made"
            )
    if settings.api_key and settings.api_key == settings.worker_token:
        raise BadSettings(
            "API_KEY and WORKER_TOKEN are the same: every worker would have the key of an administrator; "
            "give two, for example from `openssl rand -hex 32`"
        )
    if wrong := store_address.complaint(settings):
        raise BadSettings(wrong)
    if bool(settings.ssl_cert_path) != bool(settings.ssl_key_path):
        raise BadSettings(
            "SSL_CERT_PATH and SSL_KEY_PATH go together: give both, or none to serve without TLS"
        )
    _check_results(settings)
    _check_scaling(settings)
    return settings


def _check_scaling(settings: Settings) -> None:
    label, separator, value = settings.auto_scale_label.partition("=")
    if not (label and separator and value):
        raise BadSettings(
            f"AUTO_SCALE_LABEL={settings.auto_scale_label} is not allowed: "
            "give a label such as autoscaled=true"
        )
    namespace, separator, name = settings.auto_scale_deployment.partition("/")
    needs = {
        "command": (settings.auto_scale_command, "AUTO_SCALE_COMMAND: the program to call"),
        "kubernetes": (
            namespace and name,
            "AUTO_SCALE_DEPLOYMENT: namespace/name of the workers' Deployment",
        ),
    }
    given, what = needs.get(settings.auto_scale_provisioner, ("none", ""))
    if not given:
        raise BadSettings(f"AUTO_SCALE_PROVISIONER={settings.auto_scale_provisioner} needs {what}")
    for name, text in (
        ("AUTO_SCALE_COMMAND", settings.auto_scale_command),
        ("AUTO_SCALE_WORKER_OPTIONS", settings.auto_scale_worker_options),
    ):
        try:
            shlex.split(text)
        except ValueError as error:
            raise BadSettings(f"{name}={text} cannot be split into words: {error}") from error


def _check_results(settings: Settings) -> None:
    endpoint, bucket = settings.results_s3_endpoint, settings.results_s3_bucket
    if bool(endpoint) != bool(bucket):
        raise BadSettings(
            "RESULTS_S3_ENDPOINT and RESULTS_S3_BUCKET go together: give both, or none to keep results in "
            "RESULTS_DIR"
        )
    if bucket and not (settings.results_s3_access_key and settings.results_s3_secret_key):
        raise BadSettings(
            f"RESULTS_S3_BUCKET={bucket} needs RESULTS_S3_ACCESS_KEY and RESULTS_S3_SECRET_KEY: give both, "
            "or files that hold them (RESULTS_S3_ACCESS_KEY_FILE, RESULTS_S3_SECRET_KEY_FILE)"
        )
    if bucket and not endpoint.startswith(("http://", "https://")):
        raise BadSettings(
            f"RESULTS_S3_ENDPOINT={endpoint} is not allowed: give an address that begins with https:// or http://"
        )
