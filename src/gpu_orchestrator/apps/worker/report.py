"""What the devices say now, as the server wants it: how much is used, by our runners and by others.

Memory that cannot be attributed (a container whose driver lists foreign process numbers) counts as others':
then less is placed here than could be, never more.
"""

from collections.abc import Iterable

from gpu_orchestrator.adapters.gpus.gpu import Gpus, Reading
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.worker.attempt import Attempt
from gpu_orchestrator.apps.worker.process import Runner

NOTICEABLE_MIB = 64


def devices(gpus: Gpus) -> tuple[session.Device, ...]:
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
        for device in gpus.devices()
    )


def readings(gpus: Gpus, runners: Iterable[Runner]) -> tuple[session.Reading, ...]:
    runners = list(runners)
    index = {device.uuid: device.index for device in gpus.devices()}
    return tuple(_told(index[now.uuid], now, runners) for now in gpus.readings())


def has_changed(before: Iterable[session.Reading], after: Iterable[session.Reading]) -> bool:
    """Noticeably: health, or memory by more than a little."""
    old, new = {r.index: r for r in before}, {r.index: r for r in after}
    return old.keys() != new.keys() or any(_differs(old[index], new[index]) for index in new)


def room(gpus: Gpus, runners: Iterable[Runner], attempt: Attempt) -> str:
    """Why an attempt cannot begin on its devices now, or nothing.

    Our own count: what the driver has free, and what an idle runner that the attempt will use has already,
    without what other attempts here have reserved and not yet taken."""
    runners = list(runners)
    now = {reading.uuid: reading for reading in gpus.readings()}
    for device in attempt.assign.devices:
        reading = now.get(device.uuid)
        if reading is None or reading.problem:
            return f"device {device.index}: {reading.problem if reading else 'is not here'}"
        free = reading.free_mib - sum(_still_to_take(reading, runner, attempt) for runner in runners)
        if attempt.assign.memory_mib > free:
            reserved = attempt.assign.memory_mib
            return f"device {device.index} has {max(free, 0)} MiB free, {reserved} were reserved"
    return ""


def _still_to_take(reading: Reading, runner: Runner, attempt: Attempt) -> int:
    if reading.uuid not in runner.devices:
        return 0
    held = reading.held_by(runner.pids())
    if not runner.queue:
        return -held if runner.devices == attempt.devices else 0
    return max(runner.queue[0].assign.memory_mib - held, 0)


def _told(index: int, now: Reading, runners: list[Runner]) -> session.Reading:
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
    )


def _differs(old: session.Reading, new: session.Reading) -> bool:
    apart = max(abs(old.free_mib - new.free_mib), abs(old.others_mib - new.others_mib))
    return apart >= NOTICEABLE_MIB or old.problem != new.problem
