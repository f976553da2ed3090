"""Seal secrets that must be kept in the store, such as those that sign callbacks, with a key from a file: the
store, its backups and its disk alone reveal none of them.

AES-256-GCM. A seal names its key and is bound to the place it is for, so it cannot be moved to another row.
The file has one key per line: the first seals, all of them open; to rotate keys, put a new one first.
"""

import os
from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from secrets import token_bytes, token_hex
from typing import TYPE_CHECKING

from gpu_orchestrator.adapters.settings import BadSettings, Settings, why_unreadable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE = 12
FILE = "secrets-key"


class CannotOpen(Exception):
    """Sealed with a key that is not here, or altered since."""


class Seal:
    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {sha256(b"name of " + key).hexdigest()[:8]: key for key in keys}
        self._first = next(iter(self._keys))

    @classmethod
    def of(cls, settings: Settings) -> "Seal":
        """Read the keys from SECRETS_KEY_FILE, or from a file in the data directory that is created if
        missing."""
        if settings.secrets_key_file:
            return cls(_read("SECRETS_KEY_FILE=", Path(settings.secrets_key_file)))
        path = Path(settings.data_dir) / FILE
        if not path.exists():
            _make(path)
        return cls(_read("", path))

    def close(self, secret: str, *, place: str) -> str:
        """Seal a secret. `place` is where it will be kept; it opens only there."""
        nonce = token_bytes(NONCE)
        sealed = nonce + self._cipher(self._first).encrypt(nonce, secret.encode(), place.encode())
        return f"sealed:{self._first}:{b64encode(sealed).decode()}"

    def open(self, sealed: str, *, place: str) -> str:
        from cryptography.exceptions import InvalidTag

        _, _, rest = sealed.partition("sealed:")
        name, _, text = rest.partition(":")
        if name not in self._keys:
            raise CannotOpen(
                f"the secret of {place} was sealed with key {name or 'unknown'}, which is not here; "
                "give every server of a store the same SECRETS_KEY_FILE"
            )
        try:
            raw = b64decode(text, validate=True)
            return self._cipher(name).decrypt(raw[:NONCE], raw[NONCE:], place.encode()).decode()
        except (InvalidTag, ValueError) as error:
            raise CannotOpen(f"the secret of {place} is not what was sealed for it") from error

    def _cipher(self, name: str) -> "AESGCM":
        # Imported on first use: most servers keep no secrets, and the import takes memory and time.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(self._keys[name])


def _read(setting: str, path: Path) -> list[bytes]:
    try:
        keys = [bytes.fromhex(line) for line in path.read_text().split()]
    except OSError as error:
        raise BadSettings(f"{setting}{path} {why_unreadable(error)}; give a file to read") from error
    except ValueError:
        keys = []
    if not keys or any(len(key) != 32 for key in keys):
        raise BadSettings(
            f"{setting}{path} cannot be used: it does not hold keys of 64 hexadecimal digits, one a line; "
            "make one with `openssl rand -hex 32`"
        )
    return keys


def _make(path: Path) -> None:
    """Create the file atomically; if another process was first, its file is used."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f"{path.name}.{token_hex(4)}")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token_hex(32) + "\n")
    try:
        os.link(new, path)
    except FileExistsError:
        pass
    finally:
        new.unlink()
