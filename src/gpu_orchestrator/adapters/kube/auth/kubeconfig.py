"""Read and merge kubeconfig files, and choose a context. `config.load` calls this.

The rules are kubectl's: several files are merged, the first file that names an entry wins, and a path is
relative to the folder of its file.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from gpu_orchestrator.adapters.kube.auth.credentials import (
    Credentials,
    Exec,
    ExecSpec,
    Fixed,
    Identity,
    TokenFile,
)
from gpu_orchestrator.adapters.kube.errors import ConfigError


class Entry(msgspec.Struct, frozen=True, rename="kebab"):
    """Base of a kubeconfig's sections."""


class Cluster(Entry, frozen=True, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""

    def ca_pem(self, source: str) -> str:
        """Return the CA to trust, or an empty string for the system's CAs."""
        pem = _data_or_file(
            self.certificate_authority_data, self.certificate_authority, "certificate-authority", source
        )
        return pem.decode(errors="replace")


class User(Entry, frozen=True, rename="kebab"):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    exec: ExecSpec | None = None
    auth_provider: Any = None
    as_: str = msgspec.field(default="", name="as")
    as_uid: str = ""
    as_groups: tuple[str, ...] = ()
    folder: str = ""

    def credentials(self, source: str, cluster: Cluster) -> Credentials:
        if self.auth_provider is not None:
            raise ConfigError(
                f"{source} uses the old auth-provider section, which Kubernetes has removed; "
                "use an exec plugin instead"
            )
        if self.exec is not None:
            return Exec(self.exec, Path(self.folder), _cluster_info(cluster))
        identity = self._certificate(source)
        if self.token_file:
            return TokenFile(Path(self.token_file), identity)
        return Fixed(replace(identity, token=self.token))

    def _certificate(self, source: str) -> Identity:
        certificate = _data_or_file(
            self.client_certificate_data, self.client_certificate, "client-certificate", source
        )
        key = _data_or_file(self.client_key_data, self.client_key, "client-key", source)
        if bool(certificate) != bool(key):
            have, miss = ("certificate", "key") if certificate else ("key", "certificate")
            raise ConfigError(f"{source} has a client {have} but no client {miss}; add client-{miss}-data")
        pair = f"{self.username}:{self.password}".encode()
        basic = f"Basic {base64.b64encode(pair).decode()}" if self.username else ""
        return Identity(certificate_pem=certificate, key_pem=key, basic=basic)

    def impersonation(self) -> tuple[tuple[str, str], ...]:
        if not self.as_:
            return ()
        uid = (("Impersonate-Uid", self.as_uid),) if self.as_uid else ()
        return (
            ("Impersonate-User", self.as_),
            *uid,
            *(("Impersonate-Group", group) for group in self.as_groups),
        )


class Context(Entry, frozen=True, rename="kebab"):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class NamedCluster(Entry, frozen=True):
    name: str
    cluster: Cluster = Cluster()


class NamedUser(Entry, frozen=True):
    name: str
    user: User | None = None


class NamedContext(Entry, frozen=True):
    name: str
    context: Context = Context()


class Kubeconfig(Entry, frozen=True, rename="kebab"):
    """The merged files."""

    current_context: str = ""
    clusters: tuple[NamedCluster, ...] | None = None
    users: tuple[NamedUser, ...] | None = None
    contexts: tuple[NamedContext, ...] | None = None
    files: str = ""


class Chosen(msgspec.Struct, frozen=True):
    """One context with its cluster and user; `source` names it in errors."""

    cluster: Cluster
    user: User
    namespace: str
    source: str


def read(paths: Sequence[Path]) -> Kubeconfig:
    """Read and merge the files. A single file must exist; of several, missing ones are skipped."""
    present = [path for path in paths if len(paths) == 1 or path.exists()]
    names = ", ".join(map(str, paths))
    if not present:
        raise ConfigError(f"none of the kubeconfig files exists: {names}; fix KUBECONFIG")
    parts = [_read_one(path) for path in present]
    return Kubeconfig(
        current_context=next((part.current_context for part in parts if part.current_context), ""),
        clusters=tuple(item for part in parts for item in part.clusters or ()),
        users=tuple(item for part in parts for item in part.users or ()),
        contexts=tuple(item for part in parts for item in part.contexts or ()),
        files=names,
    )


def _read_one(path: Path) -> Kubeconfig:
    try:
        tree = yaml.safe_load(read_text(path, "the kubeconfig"))
        return msgspec.convert(_absolute(tree, path.absolute().parent), Kubeconfig)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where else ""
        raise ConfigError(
            f"the kubeconfig {path} is not valid YAML{line}; fix it or create it again"
        ) from error
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"the kubeconfig {path} is not a valid one: {error}; fix it or create it again"
        ) from error


def read_text(path: Path, what: str) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigError(
            f"cannot read {what} {path}: {error.strerror}; check the path and its permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} {path} is not a text file; check the path") from error


_PATHS = {
    "clusters": ("cluster", ("certificate-authority",)),
    "users": ("user", ("client-certificate", "client-key", "tokenFile")),
}


def _absolute(tree: Any, folder: Path) -> Any:
    """Make the paths in the tree absolute, before it is merged with files of other folders."""
    if not isinstance(tree, dict):
        return tree or {}
    for section, (inner, fields) in _PATHS.items():
        items = tree.get(section)
        for item in items if isinstance(items, list) else ():
            entry = item.get(inner) if isinstance(item, dict) else None
            if isinstance(entry, dict):
                entry.update({name: str(folder / str(entry[name])) for name in fields if entry.get(name)})
                entry["folder"] = str(folder)
    return tree


def choose(merged: Kubeconfig, context: str = "") -> Chosen:
    """Return the given context or, without one, the current context."""
    name = context or merged.current_context
    contexts = {item.name: item.context for item in reversed(merged.contexts or ())}
    if not name:
        raise ConfigError(
            f"{merged.files} has no current-context; pass --context or run kubectl config use-context"
            f"{_known(contexts)}"
        )
    if name not in contexts:
        raise ConfigError(
            f"{merged.files} has no context {name!r}{_known(contexts)}; pass one with --context"
        )
    found = contexts[name]
    clusters = {item.name: item.cluster for item in reversed(merged.clusters or ())}
    users = {item.name: item.user or User() for item in reversed(merged.users or ())}
    return Chosen(
        cluster=_named(clusters, found.cluster, f"cluster of context {name!r}", merged.files),
        user=_named(users, found.user, f"user of context {name!r}", merged.files) if found.user else User(),
        namespace=found.namespace or "default",
        source=f"context {name!r} of {merged.files}",
    )


T = TypeVar("T")


def _named(entries: Mapping[str, T], name: str, what: str, files: str) -> T:
    if name not in entries:
        raise ConfigError(f"{files} does not define {name!r}, the {what}{_known(entries)}; fix the context")
    return entries[name]


def _known(entries: Mapping[str, object]) -> str:
    return f"; known: {', '.join(sorted(entries))}" if entries else "; none is defined"


def _data_or_file(data: str, path: str, what: str, source: str) -> bytes:
    if data:
        try:
            return base64.b64decode("".join(data.split()), validate=True)
        except binascii.Error as error:
            raise ConfigError(f"{what}-data of {source} is not base64; copy it again") from error
    return read_text(Path(path), f"the {what} file of {source},").encode() if path else b""


def _cluster_info(cluster: Cluster) -> dict[str, Any]:
    """Return the cluster section for an exec plugin with provideClusterInfo."""
    fields = msgspec.to_builtins(cluster)
    return {name: value for name, value in fields.items() if value}
