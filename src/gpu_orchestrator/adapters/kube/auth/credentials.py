"""How we authenticate to the API server: a fixed identity, a token file that rotates, or an exec plugin.

The transport calls `current()` before each request; after a 401 it calls once more with `renew=True`.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gpu_orchestrator.adapters.clock import elapsed_s
from gpu_orchestrator.adapters.kube.errors import ConfigError

TOKEN_FILE_FRESH_S = 10.0
EXEC_LIMIT_S = 60.0
EXEC_GROUP = "client.authentication.k8s.io"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a request authenticates with: a bearer token, a client certificate (PEM), or neither."""

    token: str = ""
    certificate_pem: bytes = b""
    key_pem: bytes = b""
    basic: str = ""

    @property
    def authorization(self) -> str:
        return f"Bearer {self.token}" if self.token else self.basic


class Credentials(Protocol):
    async def current(self, *, renew: bool = False) -> Identity: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """An identity that does not change while we run."""

    identity: Identity

    async def current(self, *, renew: bool = False) -> Identity:
        return self.identity


@dataclass(slots=True)
class TokenFile:
    """A token in a file that another process renews, as the kubelet does for pods."""

    path: Path
    base: Identity = field(default_factory=Identity)
    _read_at: float = float("-inf")
    _token: str = ""

    async def current(self, *, renew: bool = False) -> Identity:
        if renew or elapsed_s() - self._read_at >= TOKEN_FILE_FRESH_S:
            self._token, self._read_at = self._read(), elapsed_s()
        return replace(self.base, token=self._token)

    def _read(self) -> str:
        try:
            token = self.path.read_text().strip()
        except OSError as error:
            if self._token:
                return self._token  # the file is being rotated: the old token stays valid for a while
            raise ConfigError(
                f"cannot read the token file {self.path}: {error.strerror}; mount it or fix the path"
            ) from error
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"the token file {self.path} is not a text file; write a token into it"
            ) from error
        if not token:
            raise ConfigError(f"the token file {self.path} is empty; write a token into it")
        return token


class ExecEnv(msgspec.Struct, frozen=True):
    name: str
    value: str = ""


class ExecSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The `exec` section of a kubeconfig user."""

    command: str
    api_version: str = f"{EXEC_GROUP}/v1"
    args: tuple[str, ...] | None = None
    env: tuple[ExecEnv, ...] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False


class ExecStatus(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    status: ExecStatus | None = None


@dataclass(slots=True)
class Exec:
    """Credentials from a command, kept until they expire."""

    spec: ExecSpec
    folder: Path
    cluster: Mapping[str, Any] = field(default_factory=dict)
    _status: ExecStatus | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def current(self, *, renew: bool = False) -> Identity:
        stale = self._status
        async with self._lock:
            # A caller that waited for the lock uses what the previous holder has just fetched.
            if self._expired() or (renew and self._status is stale):
                self._status = await self._fetch()
        status = self._status or ExecStatus()
        return Identity(
            status.token, status.client_certificate_data.encode(), status.client_key_data.encode()
        )

    def _expired(self) -> bool:
        if self._status is None:
            return True
        expires = self._status.expiration_timestamp
        return expires is not None and (expires - datetime.now(UTC)).total_seconds() < 10

    async def _fetch(self) -> ExecStatus:
        out = await self._run()
        try:
            answer = msgspec.json.decode(out, type=ExecCredential)
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"{self._plugin} printed no ExecCredential: {error}; run it by hand to see its output"
            ) from error
        if answer.api_version != self.spec.api_version:
            raise ConfigError(
                f"{self._plugin} answered in {answer.api_version or 'no apiVersion'}, "
                f"the kubeconfig asks for {self.spec.api_version}; make the two agree"
            )
        status = answer.status or ExecStatus()
        if not status.token and not (status.client_certificate_data and status.client_key_data):
            raise ConfigError(
                f"{self._plugin} gave neither a token nor a client certificate; log in to it again"
            )
        return status

    async def _run(self) -> bytes:
        try:
            process = await asyncio.create_subprocess_exec(
                self._command,
                *(self.spec.args or ()),
                env=self._env(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            hint = self.spec.install_hint.strip() or "install it or fix `exec.command` in the kubeconfig"
            raise ConfigError(f"cannot run {self._plugin}: {error.strerror}; {hint}") from error
        try:
            async with asyncio.timeout(EXEC_LIMIT_S):
                out, err = await process.communicate()
        except TimeoutError as error:
            raise ConfigError(
                f"{self._plugin} gave no credentials within {EXEC_LIMIT_S:.0f} s; run it by hand"
            ) from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            last_line = (err.decode(errors="replace").strip().splitlines() or ["nothing on stderr"])[-1]
            raise ConfigError(
                f"{self._plugin} failed with exit code {process.returncode}: {last_line}; run it by hand"
            )
        return out

    @property
    def _plugin(self) -> str:
        return f"the credential plugin '{self.spec.command}'"

    @property
    def _command(self) -> str:
        # As kubectl does: a path is relative to the kubeconfig's folder, a bare word is looked up in PATH.
        return str(self.folder / self.spec.command) if "/" in self.spec.command else self.spec.command

    def _env(self) -> dict[str, str]:
        info: dict[str, Any] = {"interactive": False}
        if self.spec.provide_cluster_info:
            info["cluster"] = dict(self.cluster)
        request = {"apiVersion": self.spec.api_version, "kind": "ExecCredential", "spec": info}
        extra = {entry.name: entry.value for entry in self.spec.env or ()}
        return {**os.environ, **extra, "KUBERNETES_EXEC_INFO": json.dumps(request)}
