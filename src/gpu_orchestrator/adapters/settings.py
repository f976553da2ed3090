"""Settings of the cluster manager, from the environment and a `.env` file; the environment wins.

A setting's name is the field's in capitals. A bad value is an error that names the variable, the value and
what is allowed, and all bad ones are told at once.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from gpu_orchestrator.api.rates import by_route

T = TypeVar("T")


class BadSettings(ValueError):
    """One line per setting that cannot be used."""


def _setting(default: T, allowed: str, read: Callable[[str], T]) -> T:
    return field(default=default, metadata={"allowed": allowed, "read": read})


def _text(default: str = "", allowed: str = "any text") -> str:
    return _setting(default, allowed, str)


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


def _between(kind: Callable[[str], Any], least: float, most: float) -> Callable[[str], Any]:
    def read(value: str) -> Any:
        number = kind(value)
        if not least <= number <= most:
            raise ValueError(value)
        return number

    return read


def _routes(value: str) -> str:
    by_route(value)
    return value


@dataclass(frozen=True, slots=True)
class Settings:
    """`.env.example` says what each is for."""

    api_host: str = _text("127.0.0.1", "an address of this machine")
    api_port: int = _whole(8000, 0, 65_535)
    api_key: str = _text(allowed="a key of 32 characters or more")
    api_key_file: str = _text(allowed="a file that can be read")
    worker_token_file: str = _text(allowed="a file that can be read")
    redis_url: str = _text(allowed="redis://, rediss:// or unix://")
    redis_host: str = _text(allowed="a host name")
    redis_port: int = _whole(6379, 1, 65_535)
    redis_db: int = _whole(0, 0, 15)
    redis_password: str = _text()
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
    placement_policy: str = _text("balanced", "the name of a policy")
    max_request_mb: float = _number(8, 0.01, 1024)
    rate_limit_per_minute: int = _whole(100, 0, 1_000_000)
    rate_limit_per_hour: int = _whole(1000, 0, 1_000_000_000)
    rate_limit_routes: str = _setting(
        "", "such as POST /tasks=300/m,5000/h; GET /tasks/{task_id}=none", _routes
    )
    quota_queued_tasks: int = _whole(10_000, 0, 1_000_000_000)
    quota_running_tasks: int = _whole(0, 0, 1_000_000)
    quota_gpu_seconds_per_day: int = _whole(0, 0, 1_000_000_000)
    max_queued_tasks: int = _whole(100_000, 1, 100_000_000)
    metrics_auth: bool = _flag(False)
    events_kept: int = _whole(50_000, 100, 10_000_000)
    max_watchers: int = _whole(1000, 0, 100_000)
    log_level: Literal["INFO", "DEBUG"] = _one_of("INFO", "INFO", "DEBUG")

    @property
    def external_store(self) -> str:
        """The address of the configured store; empty when none is."""
        if self.redis_url:
            return self.redis_url
        if not self.redis_host:
            return ""
        secret = f":{quote(self.redis_password, safe='')}@" if self.redis_password else ""
        return f"redis://{secret}{self.redis_host}:{self.redis_port}/{self.redis_db}"


def load(environ: Mapping[str, str] | None = None, env_file: Path = Path(".env"), **given: Any) -> Settings:
    """What is `given` (by the command line) wins over the environment, and that over the file."""
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
    """Read secrets that are given as files."""
    wrong = []
    for name in ("api_key", "redis_password"):
        path = found.get(f"{name}_file")
        if path and not found.get(name):
            try:
                found[name] = Path(path).read_text().strip()
            except OSError as error:
                wrong.append(
                    f"{name.upper()}_FILE={path} is not allowed: {error.strerror}; give a file to read"
                )
    return wrong


def _checked(settings: Settings) -> Settings:
    if settings.api_key and len(settings.api_key) < 32:
        raise BadSettings(
            f"API_KEY has {len(settings.api_key)} characters: give 32 or more, "
            "for example from `openssl rand -hex 32`, or leave it empty to have one made"
        )
    if settings.redis_url and not settings.redis_url.startswith(("redis://", "rediss://", "unix://")):
        raise BadSettings(
            f"REDIS_URL={settings.redis_url} is not allowed: begin with redis://, rediss:// or unix://"
        )
    return settings
