"""Settings of the agent: a YAML file, overridden by flags. Unknown keys are refused."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gpu_orchestrator.adapters import setting_file
from gpu_orchestrator.adapters.settings import BadSettings
from gpu_orchestrator.api import names

Seconds = Annotated[float, Meta(gt=0)]
LONGEST_NODE = names.LONGEST_NAME - len(names.AGENT_LEASE_PREFIX)
Lock = Literal["lease", "binding"]


class Settings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`node_name` is the node that this agent is on, `pod_name` the agent's own pod, which two agents of one
    node never share. `namespace` has the leases of devices and agents.

    `scan_seconds`: how often the agent looks. `heartbeat_seconds`: how often it renews its Lease, which is
    believed for 90 s. `refresh_seconds`: how often it writes its report even if nothing changed.

    A device is unhealthy from `temperature_limit_c` on (0: whatever its temperature), and healthy again after
    `recovery_seconds` of passing checks: twice that after each relapse, `longest_recovery_seconds` at most. A
    device that the driver lists no more is forgotten after `forget_seconds`.

    `lock` is the scheduler's: with `binding`, the annotation of a pod says what it was given, not leases.
    `ignore_namespaces`: their pods may use any device. `taint_on_mismatch` keeps new pods away from a node
    while a pod uses a device that it was not given. `mps`: keep the MPS daemons that hold shared claims to
    their shares, where NVIDIA's control program is there; `mps_daemons` at once, and half of them for one
    namespace.

    `simulate` and `devices_file` describe simulated devices, which are kept in `devices_folder`. `root` is
    where the host's /proc, /sys and /run/gpu-mps are."""

    kubeconfig: str = ""
    namespace: str = names.NAMESPACE
    node_name: str = ""
    pod_name: str = ""
    metrics_bind_address: str = ":8080"
    health_probe_bind_address: str = ":8081"
    scan_seconds: Annotated[float, Meta(ge=0.05, le=60)] = 5.0
    heartbeat_seconds: Annotated[float, Meta(ge=1, le=60)] = 30.0
    refresh_seconds: Annotated[float, Meta(ge=1)] = 300.0
    temperature_limit_c: Annotated[float, Meta(ge=0)] = 95.0
    recovery_seconds: Annotated[float, Meta(ge=0)] = 60.0
    longest_recovery_seconds: Annotated[float, Meta(ge=0)] = 1800.0
    forget_seconds: Seconds = 86_400.0
    pod_resources_socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    lock: Lock = "lease"
    ignore_namespaces: tuple[str, ...] = ()
    taint_on_mismatch: bool = False
    mps: bool = False
    mps_daemons: Annotated[int, Meta(ge=1, le=4096)] = 48
    simulate: str = ""
    devices_file: str = ""
    devices_folder: str = "/run/gpu-orchestrator/devices"
    root: str = "/"

    @property
    def is_simulated(self) -> bool:
        return bool(self.simulate or self.devices_file)


def load(path: str, flags: dict[str, Any]) -> Settings:
    """Read the settings. A flag that was not given is None."""
    settings = setting_file.load(Settings, path, flags)
    if not names.is_object_name(settings.node_name):
        raise BadSettings(
            f"'{settings.node_name}' does not name this agent's node; set NODE_NAME (spec.nodeName of its "
            "pod), or give --node-name"
        )
    if len(settings.node_name) > LONGEST_NODE:
        raise BadSettings(
            f"'{settings.node_name}' has {len(settings.node_name)} characters; the Leases of its agent and "
            f"its devices are named after it, so it may have {LONGEST_NODE}"
        )
    if not names.is_object_name(settings.namespace):
        raise BadSettings(f"namespace '{settings.namespace}' is no name that an object can have")
    if settings.pod_name and not names.is_object_name(settings.pod_name):
        raise BadSettings(f"podName '{settings.pod_name}' is no name that an object can have")
    if settings.simulate and settings.devices_file:
        raise BadSettings("--simulate and --devices-file both describe GPUs; give one of them")
    return settings
