"""What a session tells its worker: how long a lease lasts, also when this server ends (`hold_s`), how often
to renew it and to report, how much of a log is kept, and whether partial results are."""

from dataclasses import dataclass

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.fleet.alerts import Thresholds

RENEWALS_PER_LEASE = 3.33
GRACE_PER_LEASE = 0.3


@dataclass(frozen=True, slots=True)
class SessionConfig:
    lease_s: float = 10.0
    hold_s: float = 60.0
    heartbeat_s: float = 30.0
    registration_s: float = 60.0
    cancel_grace_s: float = 5.0
    log_kb: int = 0
    takes_values: bool = False
    alerts: Thresholds = Thresholds()  # noqa: RUF009 - frozen

    @classmethod
    def of(cls, settings: Settings) -> "SessionConfig":
        return cls(
            lease_s=settings.worker_lease,
            hold_s=max(settings.restart_grace, settings.worker_lease),
            heartbeat_s=settings.heartbeat_interval,
            registration_s=settings.worker_registration_timeout,
            log_kb=settings.task_log_kb if settings.task_logs_mb else 0,
            takes_values=bool(settings.task_values_kb and settings.task_logs_mb),
            alerts=Thresholds(settings.gpu_temperature_alert, settings.gpu_memory_alert),
        )

    def welcome(self, worker: str, epoch: int, *, resumed: bool, executor: str = "") -> session.Welcome:
        renew_every_s = self.lease_s / RENEWALS_PER_LEASE
        return session.Welcome(
            worker,
            epoch,
            self.lease_s,
            renew_every_s,
            self.heartbeat_s,
            resumed,
            self.log_kb,
            pieces=True,
            takes_values=self.takes_values,
            executor=executor,
        )
