"""What the devices say now, as the server wants it: how much is used, by our runners and by others.

Memory that cannot be attributed (a container whose driver lists foreign process numbers) counts as others':
then less is placed here than could be, never more.
"""

from collections.abc import Iterable

from gpu_orchestrator.adapters.gpus.gpu import Gpus, Reading
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker.attempts.attempt import Attempt
from gpu_orchestrator.apps.worker.runners.runner_handle import RunnerHandle
from gpu_orchestrator.apps.worker.runners.runner_pool import RunnerPool
from gpu_orchestrator.apps.worker.session import system

NOTICEABLE_MIB = 64
NOTICEABLE_C = 5.0
LOOK_S = 1.0


class Reporter:
    def __init__(self, gpus: Gpus, pool: RunnerPool) -> None:
        self._gpus, self._pool = gpus, pool
        self._last: tuple[session.Reading, ...] = ()
        self._look_at = self._due_at = 0.0
        self.heartbeat_s = 30.0

    def devices(self) -> tuple[session.Device, ...]:
        return tuple(
            session.Device(
                index=device.index,
                uuid=device.uuid,
                vendor=device.vendor,
                model=device.model,
                memory_mib=device.memory_mib,
                driver_version=device.driver_version,
                numa=device.numa,
            )
            for device in self._gpus.devices()
        )

    def due(self, now: float) -> session.Report | None:
        """A report when something changed noticeably, and after `heartbeat_s` in any case."""
        if now < self._look_at:
            return None
        self._look_at = now + LOOK_S
        readings = self._readings()
        return self._told(readings, now) if now >= self._due_at or _differ(self._last, readings) else None

    def report(self, now: float) -> session.Report:
        return self._told(self._readings(), now)

    def room(self, attempt: Attempt) -> str:
        """Why an attempt cannot begin on its devices now, or nothing.

        By our count: what the driver has free, and what an idle runner the attempt will use has already,
        without what other attempts here have reserved and not yet taken."""
        now = {reading.uuid: reading for reading in self._gpus.readings()}
        reserved = attempt.assign.memory_mib
        for device in attempt.assign.devices:
            reading = now.get(device.uuid)
            if reading is None or reading.problem:
                return f"device {device.index}: {reading.problem if reading else 'is not here'}"
            waits = sum(_still_to_take(reading, runner, attempt) for runner in self._pool.all())
            free = max(reading.free_mib - waits, 0)
            if reserved > free:
                return f"device {device.index} has {free} MiB free, {reserved} were reserved"
        return ""

    def _readings(self) -> tuple[session.Reading, ...]:
        runners = self._pool.all()
        index = {device.uuid: device.index for device in self._gpus.devices()}
        return tuple(_reading(index[now.uuid], now, runners) for now in self._gpus.readings())

    def _told(self, readings: tuple[session.Reading, ...], now: float) -> session.Report:
        self._last, self._due_at = readings, now + self.heartbeat_s
        return session.Report(readings, ram_used_mib=system.look().ram_used_mib)


def _still_to_take(reading: Reading, runner: RunnerHandle, attempt: Attempt) -> int:
    if reading.uuid not in runner.devices:
        return 0
    held = reading.held_by(runner.pids())
    if not runner.queue:
        return -held if runner.devices == attempt.devices else 0
    return max(runner.queue[0].assign.memory_mib - held, 0)


def _reading(index: int, now: Reading, runners: list[RunnerHandle]) -> session.Reading:
    ours = {runner: now.held_by(runner.pids()) for runner in runners if now.uuid in runner.devices}
    return session.Reading(
        index=index,
        used_mib=now.used_mib,
        free_mib=now.free_mib,
        others_mib=max(now.used_mib - sum(ours.values()), 0),
        held=tuple(
            session.Held(*runner.queue[0].key, used_mib=mib) for runner, mib in ours.items() if runner.queue
        ),
        utilization=now.utilization_percent or 0.0,
        temperature_c=now.temperature_c or 0.0,
        problem=now.problem,
        ecc_errors=now.ecc_errors or 0,
        xid=now.xid,
    )


def _differ(before: Iterable[session.Reading], after: Iterable[session.Reading]) -> bool:
    old, new = {r.index: r for r in before}, {r.index: r for r in after}
    return old.keys() != new.keys() or any(_differs(old[index], new[index]) for index in new)


def _differs(old: session.Reading, new: session.Reading) -> bool:
    apart = max(abs(old.free_mib - new.free_mib), abs(old.others_mib - new.others_mib))
    warmer = abs(old.temperature_c - new.temperature_c) >= NOTICEABLE_C
    return apart >= NOTICEABLE_MIB or warmer or _faults(old) != _faults(new)


def _faults(reading: session.Reading) -> tuple[str, int, int]:
    return reading.problem, reading.ecc_errors, reading.xid
