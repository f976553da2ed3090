"""The keys that a server starts with, and those that its own machine's client and worker use.

`begin` makes what is missing, in memory. `keep` writes it down once the server runs: a start that fails or is
killed leaves no key behind that nobody has seen. A machine whose client has no key that works gets a new one;
older keys go on working, because clients elsewhere may have them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_orchestrator.adapters import private_files
from gpu_orchestrator.adapters.private_files import CLIENT, TOKEN
from gpu_orchestrator.adapters.settings import BadSettings, Settings
from gpu_orchestrator.apps.manager.access import keys

HASHES = "keys.json"
Hashes = list[tuple[str, str]]
"""Hash and scope of each key that was made here, oldest first."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """Keys in plain text. `fresh`: the API key was made just now, and is shown only this once. `further`: it
    was made in addition to older ones, which this machine no longer has."""

    api_key: str
    worker_token: str
    fresh: bool = False
    further: bool = False


@dataclass(frozen=True, slots=True)
class _Begun:
    """What a server starts with in one scope. `secret` is the key of this machine."""

    secret: str
    known: tuple[keys.Key, ...]
    is_made: bool = False


@dataclass(frozen=True, slots=True)
class Begun:
    """All keys to start with; `hashes` is to be kept if a key was made."""

    known: tuple[keys.Key, ...]
    secrets: Secrets
    hashes: Hashes
    has_new_token: bool
    has_new_hash: bool


def begin(chosen: Settings, folder: Path) -> Begun:
    """Return the keys to start with. Those that are configured take the place of those that were made."""
    kept = _hashes(folder / HASHES)
    remembered = str(private_files.read_object(folder / CLIENT).get("key", ""))
    admin = _begin("admin", chosen.api_key, remembered, kept)
    worker = _begin("worker", chosen.worker_token, private_files.read(folder / TOKEN), kept)
    made = [each.known[-1] for each in (admin, worker) if each.is_made]
    return Begun(
        known=(*admin.known, *worker.known),
        secrets=Secrets(admin.secret, worker.secret, admin.is_made, admin.is_made and len(admin.known) > 1),
        hashes=[*kept, *((key.digest.hex(), next(iter(key.scopes))) for key in made)],
        has_new_token=worker.is_made,
        has_new_hash=bool(made),
    )


def keep(begun: Begun, chosen: Settings, url: str) -> None:
    """Write down the keys that were made, and what clients of this machine need.

    The hashes come last. If we are killed before, the next start finds no key and makes one."""
    folder = Path(chosen.data_dir)
    private_files.write(folder / CLIENT, json.dumps(_client(chosen, url, begun.secrets)))
    if begun.has_new_token:
        private_files.write(folder / TOKEN, begun.secrets.worker_token)
    if begun.has_new_hash:
        private_files.write(folder / HASHES, json.dumps(begun.hashes))


def _begin(scope: keys.Scope, configured: str, remembered: str, kept: Hashes) -> _Begun:
    if configured:
        return _Begun(configured, (keys.key_of(configured, scope),))
    digests = [bytes.fromhex(digest) for digest, of in kept if of == scope]
    known = tuple(keys.configured(digest, scope) for digest in digests)
    if remembered and keys.digest_of(remembered) in digests:
        return _Begun(remembered, known)
    secret = keys.make()
    return _Begun(secret, (*known, keys.key_of(secret, scope)), is_made=True)


def _hashes(path: Path) -> Hashes:
    try:
        found: Sequence[tuple[str, str]] = json.loads(private_files.read(path) or "[]")
        return [(bytes.fromhex(digest).hex(), str(scope)) for digest, scope in found]
    except (ValueError, TypeError) as error:
        raise BadSettings(
            f"{path} cannot be read as a list of keys ({error}); put back that of a backup, or remove it: "
            "then new keys are made and older ones no longer work"
        ) from error


def _client(chosen: Settings, url: str, secrets: Secrets) -> dict[str, str]:
    """Return what clients on this machine need. They trust exactly the server's own certificate
    file, no matter which CA signed it."""
    ca = str(Path(chosen.ssl_cert_path).absolute()) if chosen.ssl_cert_path else ""
    return {"url": url, "key": secrets.api_key, "ca": ca}
