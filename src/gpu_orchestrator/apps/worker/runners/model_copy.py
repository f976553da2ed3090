"""The model of one runner, as the agent knows it: whether it is loaded, how long that took, what it holds."""

from dataclasses import dataclass

from gpu_orchestrator.apps.worker.frames import HEALTHY, Health
from gpu_orchestrator.core import copies

NEVER = float("-inf")


@dataclass(slots=True, eq=False)
class ModelCopy:
    """`number` counts the loads of this worker. `mib` is the most that the driver said it holds on a device;
    `reserved_mib` what its last task reserved there. Times are by the loop's clock."""

    model: str
    number: int
    is_asked: bool = False
    """Whether the runner was told to load it."""
    loaded_at: float = NEVER
    load_s: float = 0.0
    used_at: float = NEVER
    uses: float = 0.0
    mib: int = 0
    reserved_mib: int = 0
    ends_within_s: float = 0.0
    """How long its end may take if it has a server; 0: kill it."""
    health: Health | None = None

    @property
    def is_loaded(self) -> bool:
        return self.loaded_at > NEVER

    def loaded(self, now: float, load_s: float, ends_within_s: float = 0.0) -> None:
        self.loaded_at, self.load_s, self.ends_within_s = now, load_s, ends_within_s
        if ends_within_s:
            self.health = Health(HEALTHY)

    def begins_task(self, now: float, reserved_mib: int) -> None:
        self.uses = self.uses * copies.faded(now - self.used_at) + 1
        self.used_at, self.reserved_mib = now, reserved_mib

    def ends_task(self, now: float) -> None:
        self.used_at = now

    def as_copy(self, devices: tuple[str, ...], *, busy: bool, pinned: bool) -> copies.Copy:
        return copies.Copy(
            self.model,
            devices,
            self.mib or self.reserved_mib,
            self.load_s,
            self.loaded_at,
            self.used_at,
            self.uses,
            busy,
            pinned,
        )
