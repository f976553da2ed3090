"""Settings of the scheduler: a YAML file, overridden by flags. Unknown keys are refused."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gpu_orchestrator.adapters import setting_file
from gpu_orchestrator.api import names
from gpu_orchestrator.api.devices import OnUnhealthy

Lock = Literal["lease", "binding"]
Require = Literal["Ignore", "Warn", "Refuse"]
Backfill = Literal["Declared", "Enforced"]
OnOverrun = Literal["Event", "Evict"]
Seconds = Annotated[float, Meta(gt=0)]
# The leader's lease is named after the scheduler, so the name must suit an object.
NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"


class Settings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`lock: lease` guards every device with a Lease, so any number of schedulers is safe. `lock: binding`
    writes less, but is safe only with one leader.

    `namespace` has the leader's lease, `lease_namespace` those of devices and agents; empty: the same. All
    schedulers of a cluster must name the same, or one device could be leased in two namespaces.
    `require_device_env` is for pods whose containers do not take their devices from the annotations,
    `require_capacity` for pods that request less `gpu.scheduling/milligpu` than their GPUs count for.
    `agent_seconds` is the longest time from a process that opens a device until its agent's report shows it;
    `on_unhealthy` is for pods whose claim does not say what to do if a device of theirs becomes unhealthy.
    `preempts`: pods of higher priority may evict others.
    `reservations` is how many places are kept at once for pods and gangs that do not fit, 0 for none; `holds`
    of them are for those that have waited for `reserve_after_seconds` where no end is declared, for
    `hold_seconds` at first. `backfill` says which run times count, `on_overrun` what becomes of a pod that
    runs longer than declared in a place that is kept for another.
    `gang_seconds`: how long a gang may be bound in part before its members are evicted.
    `guarded_annotations`: the policies of config/policy are installed, so that only a scheduler can write
    `gpu.scheduling/allocated`."""

    kubeconfig: str = ""
    namespace: str = names.NAMESPACE
    lease_namespace: str = ""
    scheduler_name: Annotated[str, Meta(pattern=NAME, max_length=200)] = names.SCHEDULER
    lock: Lock = "lease"
    strategy: str = ""
    leader_elect: bool = True
    lease_seconds: Seconds = 15.0
    renew_seconds: Seconds = 10.0
    retry_seconds: Seconds = 2.0
    metrics_bind_address: str = ":8080"
    health_probe_bind_address: str = ":8081"
    max_in_flight: Annotated[int, Meta(ge=1, le=1000)] = 64
    max_waiting_shapes: Annotated[int, Meta(ge=1)] = 1000
    sweep_seconds: Seconds = 30.0
    release_seconds: Annotated[float, Meta(ge=0)] = 30.0
    agent_seconds: Annotated[float, Meta(ge=0)] = 15.0
    volume_bind_seconds: Seconds = 600.0
    gang_seconds: Seconds = 60.0
    preempts: bool = True
    reservations: Annotated[int, Meta(ge=0, le=64)] = 4
    holds: Annotated[int, Meta(ge=0, le=64)] = 2
    reserve_after_seconds: Seconds = 300.0
    hold_seconds: Seconds = 600.0
    backfill: Backfill = "Declared"
    on_overrun: OnOverrun = "Event"
    require_device_env: Require = "Warn"
    require_capacity: Require = "Ignore"
    on_unhealthy: OnUnhealthy = "Event"
    guarded_annotations: bool = False

    @property
    def device_lease_namespace(self) -> str:
        return self.lease_namespace or self.namespace


def load(path: str, flags: dict[str, Any]) -> Settings:
    """Read the settings. A flag that was not given is None."""
    return setting_file.load(Settings, path, flags)
