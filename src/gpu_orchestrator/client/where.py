"""Which server a client talks to, and with which key. The commands and `Client` ask this.

In this order: what is given; GPU_ORCHESTRATOR_URL, API_KEY and API_KEY_FILE (also from `.env`); what
`login` stored; what `up` left in its data directory. A stored key is for the server it was stored with: no
other server receives it. Settings of the server are not judged here.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpu_orchestrator.client.errors import BadPlace

DEFAULT_URL = "http://127.0.0.1:8000"
CLIENT = "client.json"
DEFAULT = "the default address"
DATA_DIR = "~/.local/share/gpu-orchestrator"


@dataclass(frozen=True, slots=True)
class Given:
    """What a caller says about the server. `url_name` and `key_name` are what messages call its parts."""

    url: str = ""
    key: str = ""
    key_file: Path | None = None
    ca: str = ""
    url_name: str = "url"
    key_name: str = "key_file"


NOTHING = Given()


@dataclass(frozen=True, slots=True)
class Place:
    """A server. `ca` is a file with the certificates to trust; if empty, those of the system. `found` says
    where the address is from, `key_found` where the key is from."""

    url: str
    key: str = ""
    ca: str = ""
    found: str = ""
    key_found: str = ""
    data_dir: str = ""
    """The data directory of `up`, if that is where the address is from."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A file with an address and its key."""

    path: Path
    url: str
    key: str
    ca: str
    is_ups: bool

    @property
    def source(self) -> str:
        return f"{self.path}, as `up` left it" if self.is_ups else f"{self.path}, as `login` stored it"


def find(
    given: Given = NOTHING, environ: Mapping[str, str] | None = None, env_file: Path = Path(".env")
) -> Place:
    """Return the server to ask."""
    environ = {**env_values(env_file), **(os.environ if environ is None else environ)}
    stored = _stored(environ)
    asked = given.url or environ.get("GPU_ORCHESTRATOR_URL", "")
    url = checked(asked, given.url_name if given.url else "GPU_ORCHESTRATOR_URL") if asked else ""
    match = next((each for each in stored if url in ("", each.url)), None)
    key, key_found = _key(given, environ)
    if match and not key:
        key, key_found = match.key, str(match.path)
    if match and not url:
        found = match.source
    else:
        found = given.url_name if given.url else "GPU_ORCHESTRATOR_URL" if url else DEFAULT
    return Place(
        url=url or (match.url if match else DEFAULT_URL),
        key=key,
        ca=str(given.ca or environ.get("GPU_ORCHESTRATOR_CA", "") or (match.ca if match else "")),
        found=found,
        key_found=key_found,
        data_dir=str(match.path.parent) if match and match.is_ups else "",
    )


def checked(url: str, name: str) -> str:
    """Return the address without a slash at its end; raise `BadPlace` if it cannot be one."""
    example = "write for example https://gpu.example:8000"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadPlace(f"{name} {url} is not an address ({error}); {example}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or port == 0:
        raise BadPlace(f"{name} {url} is not an address; {example}")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise BadPlace(f"{name} {url} has a character that no address has; {example}")
    return url.rstrip("/")


def login_file(environ: Mapping[str, str] | None = None) -> Path:
    """Return the file in which `login` stores address and key."""
    environ = os.environ if environ is None else environ
    config = environ.get("XDG_CONFIG_HOME") or "~/.config"
    return _expanded(config) / "gpu-orchestrator" / CLIENT


def env_values(path: Path) -> dict[str, str]:
    """Return the values of a `.env` file; none if it cannot be read: a client can do without it."""
    if not path.exists():
        return {}
    from gpu_orchestrator.adapters import settings  # seldom needed, and slower to load than all of this

    try:
        return settings.env_file_values(path)
    except (settings.BadSettings, UnicodeError):
        return {}


def read_key(path: Path, name: str) -> str:
    """Return the key in a file; raise `BadPlace` if there is none."""
    try:
        key = path.expanduser().read_text().strip()
    except (OSError, UnicodeError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise BadPlace(f"{name} {path} cannot be read: {why}; give a file with a key") from error
    return checked_key(key, f"{name} {path}")


def checked_key(key: str, name: str) -> str:
    if not key:
        raise BadPlace(f"{name} holds no key; give the key that you were given")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise BadPlace(f"{name} holds more than a key, or not a key at all; give the key alone, on one line")
    return key


def _key(given: Given, environ: Mapping[str, str]) -> tuple[str, str]:
    if given.key:
        return checked_key(given.key, "key"), "key"
    if given.key_file:
        return read_key(given.key_file, given.key_name), f"{given.key_name} {given.key_file}"
    if key := environ.get("API_KEY", "").strip():
        return checked_key(key, "API_KEY"), "API_KEY"
    if file := environ.get("API_KEY_FILE", ""):
        return read_key(Path(file), "API_KEY_FILE"), f"API_KEY_FILE={file}"
    return "", ""


def _stored(environ: Mapping[str, str]) -> list[Stored]:
    """Return what is stored on this machine, best first."""
    data = _expanded(environ.get("DATA_DIR") or DATA_DIR) / CLIENT
    found = [_read(login_file(environ), is_ups=False), _read(data, is_ups=True)]
    return [each for each in found if each is not None]


def _read(path: Path, *, is_ups: bool) -> Stored | None:
    try:
        kept = json.loads(path.read_text())
        url = checked(str(kept["url"]), str(path))
        return Stored(path, url, str(kept.get("key", "")), str(kept.get("ca", "")), is_ups)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        return None  # another user's
    except (OSError, ValueError, KeyError, TypeError, AttributeError, BadPlace) as error:
        raise BadPlace(
            f"{path} is damaged ({error}); remove it, then "
            f"{'start `up` again' if is_ups else 'log in again: gpu-orchestrator login URL'}"
        ) from error


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # there is no home
        return Path(path)
