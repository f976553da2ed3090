"""Settings of the cluster manager, from the environment and a `.env` file; the environment wins.

A setting's name is the field's in capitals. A bad value is an error that names the variable, the value and
what is allowed; one error lists all bad values. `BadSettings` is shared with the scheduler and the worker.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from gpu_orchestrator.api.rates import by_route

T = TypeVar("T")
SHORTEST_KEY = 32


class BadSettings(ValueError):
    """A setting of any process cannot be used. The message has one line per setting, with what to write."""


def _setting(default: T, allowed: str, read: Callable[[str], T]) -> T:
    return field(default=default, metadata={"allowed": allowed, "read": read})


def _text(default: str = "", allowed: str = "any text") -> str:
    return _setting(default, allowed, str)


def _secret(allowed: str = "any text") -> str:
    """Declare a setting that is never shown. Prefer a file to the value itself: NAME_FILE instead of NAME."""
    return field(default="", repr=False, metadata={"allowed": allowed, "read": str, "secret": True})


def _whole(default: int, least: int, most: int) -> int:
    return _setting(default, f"a whole number from {least} to {most}", _between(int, least, most))


def _number(default: float, least: float, most: float) -> float:
    return _setting(default, f"a number from {least:g} to {most:g}", _between(float, least, most))


def _flag(default: bool) -> bool:
    return _setting(default, "true or false", lambda value: _FLAGS[value.lower()])


def _one_of(default: str, *names: str) -> Any:
    return _setting(default, " or ".join(names), lambda value: {name: name for name in names}[value])


_FLAGS = {
    "true": True,
    "1": True,
    "yes": True,
    "on": True,
    "false": False,
    "0": False,
    "no": False,
    "off": False,
}


def _networks(value: str) -> str:
    for each in value.split(","):
        ip_network(each.strip())
    return value


def _between(kind: Callable[[str], Any], least: float, most: float) -> Callable[[str], Any]:
    def read(value: str) -> Any:
        number = kind(value)
        if not least <= number <= most:
            raise ValueError(value)
        return number

    return read


def _origins(value: str) -> tuple[str, ...]:
    found = tuple(each.strip() for each in value.split(",") if each.strip())
    if not all(each == "*" or _ORIGIN.fullmatch(each) for each in found):
        raise ValueError(value)
    return found


_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+")


def _routes(value: str) -> str:
    by_route(value)
    return value


@dataclass(frozen=True, slots=True)
class Settings:
    """See `.env.example` for what each setting is for."""

    api_host: str = _text("127.0.0.1", "an address of this machine")
    api_port: int = _whole(8000, 0, 65_535)
    api_key: str = _secret("a key of 32 characters or more")
    api_key_file: str = _text(allowed="a file that can be read")
    worker_token: str = _secret("a token of 32 characters or more")
    worker_token_file: str = _text(allowed="a file that can be read")
    ssl_cert_path: str = _text(allowed="a file that can be read")
    ssl_key_path: str = _text(allowed="a file that can be read")
    cors_origins: tuple[str, ...] = _setting(
        (), "origins such as https://dashboard.example, separated by commas, or *", _origins
    )
    secrets_key_file: str = _text(allowed="a file that can be read")
    redis_url: str = _secret("redis://, rediss:// or unix://")
    redis_url_file: str = _text(allowed="a file that can be read")
    redis_host: str = _text(allowed="a host name")
    redis_port: int = _whole(6379, 1, 65_535)
    redis_db: int = _whole(0, 0, 15)
    redis_password: str = _secret()
    redis_password_file: str = _text(allowed="a file that can be read")
    durability: Literal["normal", "strict"] = _one_of("normal", "normal", "strict")
    data_dir: str = _setting(
        str(Path("~/.local/share/gpu-orchestrator").expanduser()),
        "a folder that can be written",
        lambda value: str(Path(value).expanduser()),
    )
    max_workers: int = _whole(10, 1, 10_000)
    task_timeout: float = _number(300, 1, 604_800)
    task_soft_time_limit: float = _number(270, 0, 604_800)
    max_retries: int = _whole(3, 0, 100)
    task_retention: float = _number(604_800, 60, 31_536_000)
    heartbeat_interval: float = _number(30, 1, 3600)
    worker_lease: float = _number(10, 1, 3600)
    worker_registration_timeout: float = _number(60, 1, 3600)
    gpu_memory_threshold: float = _number(0.8, 0.05, 1)
    gpu_memory_headroom: int = _whole(256, 0, 1_048_576)
    gpu_temperature_alert: float = _number(85, 1, 200)
    gpu_memory_alert: float = _number(0.95, 0.05, 1)
    placement_policy: str = _text("balanced", "the name of a policy")
    max_request_mb: float = _number(8, 0.01, 1024)
    callback_hosts: str = _text(allowed="host names separated by commas, or *")
    callback_networks: str = _setting("", "networks such as 10.1.0.0/16, separated by commas", _networks)
    callback_secret: str = _secret("a secret, best whsec_ and 32 random bytes in base64")
    callback_secret_file: str = _text(allowed="a file that can be read")
    audit_keep: int = _whole(100_000, 100, 100_000_000)
    rate_limit_per_minute: int = _whole(100, 0, 1_000_000)
    rate_limit_per_hour: int = _whole(1000, 0, 1_000_000_000)
    rate_limit_routes: str = _setting(
        "", "such as POST /tasks=300/m,5000/h; GET /tasks/{task_id}=none", _routes
    )
    quota_queued_tasks: int = _whole(10_000, 0, 1_000_000_000)
    quota_running_tasks: int = _whole(0, 0, 1_000_000)
    quota_gpu_seconds_per_day: int = _whole(0, 0, 1_000_000_000)
    max_queued_tasks: int = _whole(100_000, 1, 100_000_000)
    max_store_mb: float = _number(0, 0, 100_000_000)
    metrics_auth: bool = _flag(False)
    events_kept: int = _whole(50_000, 100, 10_000_000)
    max_watchers: int = _whole(1000, 0, 100_000)
    log_level: Literal["INFO", "DEBUG"] = _one_of("INFO", "INFO", "DEBUG")
    log_format: Literal["json", "text"] = _one_of("json", "json", "text")
    log_file: str = _text(allowed="a file that can be written")
    log_file_mb: float = _number(50, 0.001, 100_000)
    log_files_kept: int = _whole(5, 0, 1000)

    @property
    def external_store(self) -> str:
        """The address of the configured store; empty if the embedded one is used."""
        if self.redis_url:
            return self.redis_url
        if not self.redis_host:
            return ""
        secret = f":{quote(self.redis_password, safe='')}@" if self.redis_password else ""
        return f"redis://{secret}{self.redis_host}:{self.redis_port}/{self.redis_db}"


def load(environ: Mapping[str, str] | None = None, env_file: Path = Path(".env"), **given: Any) -> Settings:
    """Read the settings. `given` (the command line) wins over the environment, which wins over the file."""
    values = {**_read_file(env_file), **(os.environ if environ is None else environ)}
    wrong: list[str] = []
    found = {name: value for name, value in given.items() if value is not None}
    for each in fields(Settings):
        name = each.name.upper()
        if each.name not in found and values.get(name, "") != "":
            try:
                found[each.name] = each.metadata["read"](values[name])
            except (ValueError, KeyError):
                wrong.append(f"{name}={values[name]} is not allowed: give {each.metadata['allowed']}")
    wrong += _secrets(found)
    if wrong:
        raise BadSettings("\n".join(wrong))
    return _checked(Settings(**found))


def defaults() -> dict[str, Any]:
    return {each.name.upper(): each.default for each in fields(Settings) if each.default is not MISSING}


def _read_file(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadSettings(f"{path} cannot be read: {error.strerror}") from error
    pairs = (line.partition("=") for line in lines if line.strip() and not line.lstrip().startswith("#"))
    return {name.strip().removeprefix("export "): _unquoted(value.strip()) for name, _, value in pairs}


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def _secrets(found: dict[str, Any]) -> list[str]:
    """Read the secrets that are given as files into `found`; return one line per file that fails."""
    wrong = []
    for name in (each.name for each in fields(Settings) if each.metadata.get("secret")):
        path = found.get(f"{name}_file")
        if path and not found.get(name):
            try:
                found[name] = read_secret(Path(path))
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or error
                wrong.append(f"{name.upper()}_FILE={path} is not allowed: {why}; give a file to read")
    return wrong


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
    if settings.redis_url and not settings.redis_url.startswith(("redis://", "rediss://", "unix://")):
        scheme = settings.redis_url.partition("://")[0] if "://" in settings.redis_url else "nothing"
        raise BadSettings(
            f"REDIS_URL begins with {scheme}, which is not allowed: give redis://, rediss:// or unix://"
        )
    if bool(settings.ssl_cert_path) != bool(settings.ssl_key_path):
        raise BadSettings(
            "SSL_CERT_PATH and SSL_KEY_PATH go together: give both, or none to serve without TLS"
        )
    return settings
