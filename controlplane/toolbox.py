"""Return paths of the control plane's binaries: found, or built from the pinned Go modules beside this file.

It looks in KUBEBUILDER_ASSETS, then in a per-user cache keyed by the pins, then builds. `Cluster.start` calls
`Toolbox().get(...)`; only the requested binaries are built, and a binary appears in the cache complete or not
at all. `Toolbox.of("1.35")` is the same for an older Kubernetes. It leaves out KUBEBUILDER_ASSETS, whose
binaries are of one version only.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from controlplane import golang
from controlplane.errors import ToolboxError

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Tool:
    """One binary: the package it is built from, and how long that takes on two idle cores."""

    package: str
    seconds: int


@dataclass(frozen=True, slots=True)
class Family:
    """Binaries that share one Go module (a module for all of them does not resolve)."""

    tools: Mapping[str, Tool]
    ldflags: str = "-s -w"
    tags: str = ""

    def key(self, module: Path) -> str:
        content = [module / "go.mod", module / "go.sum", *sorted(module.glob("*.go"))]
        pins = b"".join(path.read_bytes() for path in content)
        built_for = f"{self.ldflags}{self.tags} {platform.system()} {platform.machine()}".encode()
        return hashlib.sha256(pins + built_for).hexdigest()[:12]


def pinned(family: str) -> str:
    """Return the version of Kubernetes that a family pins, as v1.36.3."""
    return golang.pinned_version(HERE / "modules" / family / "go.mod", "k8s.io/kubernetes")


def _kubernetes_version_flags(family: str) -> str:
    # Without them the server reports version v0.0.0 to every client, and version skew checks misfire.
    pin = pinned(family)
    major, minor = pin.removeprefix("v").split(".")[:2]
    prefix = "-X k8s.io/component-base/version"
    return f"-s -w {prefix}.gitVersion={pin} {prefix}.gitMajor={major} {prefix}.gitMinor={minor}"


def _helm_version_flags() -> str:
    # Without them `helm template` and `helm lint` take the cluster for Kubernetes 1.20.
    module = HERE / "modules" / "helm" / "go.mod"
    minor = golang.pinned_version(module, "k8s.io/client-go").split(".")[1]
    flags = [
        f"-X helm.sh/helm/v3/internal/version.version={golang.pinned_version(module, 'helm.sh/helm/v3')}"
    ]
    for package in ("chartutil", "lint/rules"):
        prefix = f"-X helm.sh/helm/v3/pkg/{package}.k8sVersion"
        flags += [f"{prefix}Major=1", f"{prefix}Minor={minor}"]
    return " ".join(["-s -w", *flags])


NEWEST = "kubernetes"
"""The family that everything runs on; older ones are `kubernetes-1.35` and so on."""


def kubernetes_versions() -> dict[str, str]:
    """Return the family of each pinned minor version, oldest first: {"1.35": "kubernetes-1.35", …}."""
    found = [path.parent.name for path in HERE.glob("modules/kubernetes*/go.mod")]
    minors = {".".join(pinned(family).removeprefix("v").split(".")[:2]): family for family in found}
    return dict(sorted(minors.items(), key=lambda pair: golang.version_tuple(pair[0])))


def families(kubernetes_family: str = NEWEST) -> dict[str, Family]:
    kubernetes = {
        name: Tool(f"k8s.io/kubernetes/cmd/{name}", seconds)
        for name, seconds in {
            "kube-apiserver": 200,
            "kube-controller-manager": 40,
            "kube-scheduler": 20,
            "kubectl": 20,
            "kubelet": 25,
        }.items()
    }
    return {
        kubernetes_family: Family(kubernetes, ldflags=_kubernetes_version_flags(kubernetes_family)),
        "etcd": Family({"etcd": Tool("go.etcd.io/etcd/server/v3", 45)}),
        "kwok": Family({"kwok": Tool("sigs.k8s.io/kwok/cmd/kwok", 60)}),
        "helm": Family({"helm": Tool("helm.sh/helm/v3/cmd/helm", 90)}, ldflags=_helm_version_flags()),
        "actionlint": Family({"actionlint": Tool("github.com/rhysd/actionlint/cmd/actionlint", 15)}),
        "containerd": Family(_CONTAINERD, tags="no_btrfs"),  # which would need a C compiler
        "cni": Family(_CNI),
        "node-tools": Family({"node-tools": Tool("gpu-orchestrator/controlplane/node-tools", 5)}),
    }


_CONTAINERD = {
    name: Tool(f"github.com/containerd/containerd/v2/cmd/{name}", seconds)
    for name, seconds in {"containerd": 70, "containerd-shim-runc-v2": 5, "ctr": 5}.items()
}
_CNI = {
    name.rpartition("/")[2]: Tool(f"github.com/containernetworking/plugins/plugins/{name}", 5)
    for name in ("main/bridge", "ipam/host-local")
}

# What the tests and the local cluster need; the rest is built when requested by name.
USUAL = ("etcd", "kube-apiserver", "kubectl", "kube-controller-manager", "kube-scheduler", "kwok", "helm")
# What a real node needs besides (see realnode/).
NODE = ("kubelet", *_CONTAINERD, *_CNI, "node-tools")


def default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gpu-orchestrator" / "controlplane"


@dataclass(frozen=True)
class Toolbox:
    cache: Path = field(default_factory=default_cache)
    modules: Path = HERE / "modules"
    families: Mapping[str, Family] = field(default_factory=families)
    takes_assets: bool = True

    @classmethod
    def of(cls, version: str) -> Self:
        """Return the toolbox of that Kubernetes, as 1.35."""
        known = kubernetes_versions()
        if version not in known:
            raise ToolboxError(f"no Kubernetes {version} is pinned here; there are {', '.join(known)}")
        is_newest = known[version] == NEWEST
        return cls(families=families(known[version]), takes_assets=is_newest)

    def get(self, *names: str) -> dict[str, Path]:
        """Return the path of each named binary, after building the missing ones."""
        found = {name: self.find(name) for name in names}
        if missing := [name for name, path in found.items() if path is None]:
            self._build(missing)
        return {name: path or self._cached(name) for name, path in found.items()}

    def find(self, name: str) -> Path | None:
        """Return the path of a binary, or None if it is not built yet."""
        self._family_of(name)
        if self.takes_assets and (assets := os.environ.get("KUBEBUILDER_ASSETS")):
            candidate = Path(assets) / name
            if os.access(candidate, os.X_OK):
                return candidate
        cached = self._cached(name)
        return cached if cached.exists() else None

    def _cached(self, name: str) -> Path:
        family = self._family_of(name)
        return self.cache / f"{family}-{self.families[family].key(self.modules / family)}" / name

    def _family_of(self, name: str) -> str:
        for family, content in self.families.items():
            if name in content.tools:
                return family
        known = ", ".join(sorted(tool for content in self.families.values() for tool in content.tools))
        raise ToolboxError(f"unknown tool '{name}'; known: {known}")

    def _build(self, names: Sequence[str]) -> None:
        with only_one(self.cache):
            missing = [
                name for name in names if not self._cached(name).exists()
            ]  # another run may have built it
            if not missing:
                return
            go = golang.find(self._go_needed(missing), cache=self.cache)
            seconds = sum(self._tool(name).seconds for name in missing)
            took = f"about {_duration(seconds)} on two cores, once"
            _print(f"building {', '.join(missing)} with {go.version}: {took}")
            for name in missing:
                self._build_one(name, go)

    def _go_needed(self, names: Sequence[str]) -> str:
        needed = [golang.go_line(self.modules / self._family_of(name) / "go.mod") for name in names]
        return max(needed, key=golang.version_tuple)

    def _tool(self, name: str) -> Tool:
        return self.families[self._family_of(name)].tools[name]

    def _build_one(self, name: str, go: golang.Go) -> None:
        family = self._family_of(name)
        target = self._cached(name)
        _remove_leftovers(target.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".building-", dir=target.parent))
        try:
            go.build(
                self.modules / family,
                package=self._tool(name).package,
                out=unfinished / name,
                ldflags=self.families[family].ldflags,
                tags=self.families[family].tags,
            )
            (unfinished / name).replace(target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    """Remove what a killed build left behind. Safe, because the caller holds the lock: no other build
    runs."""
    for leftover in folder.glob(".building-*"):
        shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def only_one(cache: Path) -> Iterator[None]:
    """Hold the cache's lock, which the kernel releases when the process ends in any way."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _print("another run is building the control plane; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _duration(seconds: int) -> str:
    return f"{seconds} s" if seconds < 90 else f"{round(seconds / 60)} min"


def _print(sentence: str) -> None:
    print(f"toolbox: {sentence}", file=sys.stderr, flush=True)
