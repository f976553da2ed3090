"""containerd of a real node. Paths are as the node sees them: /run and /var/lib are its own."""

from pathlib import Path

from controlplane.realnode import images

SOCKET = "/run/containerd/containerd.sock"

CONFIG = """\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing"]

[grpc]
address = "{socket}"

[plugins."io.containerd.internal.v1.opt"]
path = "/var/lib/containerd/opt"

[plugins."io.containerd.image-verifier.v1.bindir"]
bin_dir = "/var/lib/containerd/verifiers"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "{snapshotter}"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"

[plugins."io.containerd.cri.v1.runtime"]
# Without CAP_SYS_RESOURCE, runc fails to set the scores that the kubelet wants.
restrict_oom_score_adj = true
# A profile would stay loaded in the kernel.
disable_apparmor = true
tolerate_missing_hugetlb_controller = true
cdi_spec_dirs = ["/run/cdi"]

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{plugins}"]
conf_dir = "{cni}"
use_internal_loopback = true

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
runtime_path = "{shim}"
snapshotter = "{snapshotter}"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false
"""


def config(*, snapshotter: str, plugins: Path, cni: Path, shim: Path, runc: Path) -> str:
    return CONFIG.format(
        socket=SOCKET,
        pause=images.PAUSE,
        snapshotter=snapshotter,
        plugins=plugins,
        cni=cni,
        shim=shim,
        runc=runc,
    )
