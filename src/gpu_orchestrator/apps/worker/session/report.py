"""Report the devices to the manager: how much memory is used, by this worker's runners and by others.

Memory that cannot be attributed counts as used by others, for example in a container whose driver lists
process ids of another namespace. Then the manager places less here than would fit, never more.
"""

from collections.abc import Iterable

from gpu_orchestrator.adapters.gpus.gpu import Gpus, Reading
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker.attempt import Attempt
from gpu_orchestrator.apps.worker.runners.model_cache import ModelCache
from gpu_orchestrator.apps.worker.runners.runner_handle import RunnerHandle
from gpu_orchestrator.apps.worker.runners.runner_pool import RunnerPool
from gpu_orchestrator.apps.worker.session import system
from gpu_orchestrator.core.copies import Device

NOTICEABLE_MIB = 64
NOTICEABLE_C = 5.0
READ_EVERY_S = 1.0


class Reporter:
    def __init__(self, gpus: Gpus, pool: RunnerPool, models: ModelCache) -> None:
        self._gpus, self._pool, self._models = gpus, pool, models
        self._last: tuple[session.Reading, ...] = ()
        self._loaded: set[tuple[int, bool, bool, int]] = set()
        self._next_read_at = self._due_at = 0.0
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
        """Return a report if a reading changed noticeably or `heartbeat_s` have passed, else None."""
        if now < self._next_read_at:
            return None
        self._next_read_at = now + READ_EVERY_S
        readings = self._readings()
        has_news = _differ(self._last, readings) or self._loaded != _loaded(self._copies())
        return self._remember(readings, now) if now >= self._due_at or has_news else None

    def report(self, now: float) -> session.Report:
        return self._remember(self._readings(), now)

    def no_room_reason(self, attempt: Attempt) -> str:
        """Return why an attempt cannot begin on its devices now, or "".

        Room is what the driver reports as free, plus what the idle runner that the attempt will use already
        holds, minus what other attempts here have reserved and not yet allocated."""
        now = self._by_uuid()
        reserved = attempt.assign.memory_mib
        for device in attempt.assign.devices:
            reading = now.get(device.uuid)
            if reading is None or reading.problem:
                return (
                    f"device {device.index}: {reading.problem if reading else 'this worker does not have it'}"
                )
            free = self._free_mib(reading, attempt)
            if reserved > free:
                return f"device {device.index} has {free} MiB free, the task needs {reserved} MiB"
        if model := self._pool.pinned_near(attempt):
            return f"model {model!r} is pinned on its devices, and the task needs them whole"
        return ""

    def missing_mib(self, attempt: Attempt) -> dict[Device, int]:
        """Return how many MiB an attempt lacks on each of its devices that the worker can read; none if it
        takes whole devices."""
        if not attempt.assign.memory_mib:
            return {}
        now = self._by_uuid()
        known = (now[uuid] for uuid in attempt.devices if uuid in now)
        return {each.uuid: attempt.assign.memory_mib - self._free_mib(each, attempt) for each in known}

    def _by_uuid(self) -> dict[str, Reading]:
        return {reading.uuid: reading for reading in self._gpus.readings()}

    def _free_mib(self, reading: Reading, attempt: Attempt) -> int:
        waits = sum(self._not_yet_allocated(reading, runner, attempt) for runner in self._pool.all())
        return max(reading.free_mib - waits, 0)

    def _not_yet_allocated(self, reading: Reading, runner: RunnerHandle, attempt: Attempt) -> int:
        if reading.uuid not in runner.devices:
            return 0
        held = reading.held_by(runner.pids())
        if not runner.queue and runner.copy is not None and not runner.copy.is_loaded:
            return max(runner.copy.reserved_mib - held, 0)  # it is loaded ahead
        if not runner.queue:
            return -held if self._pool.is_served_by(attempt, runner) else 0
        return max(runner.queue[0].assign.memory_mib - held, 0)

    def _copies(self) -> tuple[session.Copy, ...]:
        return self._models.report({device.uuid: device.index for device in self._gpus.devices()})

    def _readings(self) -> tuple[session.Reading, ...]:
        runners = self._pool.all()
        index = {device.uuid: device.index for device in self._gpus.devices()}
        serving = self._pool.pids()
        found = self._gpus.readings()
        for runner in runners:
            if runner.copy is not None and runner.devices:
                pids = runner.pids()
                held = (now.held_by(pids) for now in found if now.uuid in runner.devices)
                self._models.measured(runner, max(held, default=0))
        return tuple(_reading(index[now.uuid], now, runners, serving) for now in found)

    def _remember(self, readings: tuple[session.Reading, ...], now: float) -> session.Report:
        self._last, self._due_at, copies = readings, now + self.heartbeat_s, self._copies()
        self._loaded = _loaded(copies)
        used_mib = system.read().ram_used_mib
        return session.Report(readings, ram_used_mib=used_mib, copies=copies, cache=self._models.counts())


def _reading(index: int, now: Reading, runners: list[RunnerHandle], serving: set[int]) -> session.Reading:
    ours = {runner: now.held_by(runner.pids()) for runner in runners if now.uuid in runner.devices}
    return session.Reading(
        index=index,
        used_mib=now.used_mib,
        free_mib=now.free_mib,
        others_mib=max(now.used_mib - sum(ours.values()) - now.held_by(serving), 0),
        held=tuple(
            session.Held(*runner.queue[0].key, used_mib=mib) for runner, mib in ours.items() if runner.queue
        ),
        utilization=now.utilization_percent or 0.0,
        temperature_c=now.temperature_c or 0.0,
        problem=now.problem,
        ecc_errors=now.ecc_errors or 0,
        xid=now.xid,
    )


def _loaded(copies: Iterable[session.Copy]) -> set[tuple[int, bool, bool, int]]:
    """Return what is worth a report of its own: what is loaded, pinned, or has grown."""
    return {(each.number, each.is_loaded, each.pinned, each.used_mib // NOTICEABLE_MIB) for each in copies}


def _differ(before: Iterable[session.Reading], after: Iterable[session.Reading]) -> bool:
    old, new = {r.index: r for r in before}, {r.index: r for r in after}
    return old.keys() != new.keys() or any(_differs(old[index], new[index]) for index in new)


def _differs(old: session.Reading, new: session.Reading) -> bool:
    change_mib = max(abs(old.free_mib - new.free_mib), abs(old.others_mib - new.others_mib))
    is_warmer_or_cooler = abs(old.temperature_c - new.temperature_c) >= NOTICEABLE_C
    return change_mib >= NOTICEABLE_MIB or is_warmer_or_cooler or _faults(old) != _faults(new)


def _faults(reading: session.Reading) -> tuple[str, int, int]:
    return reading.problem, reading.ecc_errors, reading.xid
