"""What an agent remembers from look to look, and over its own end."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_orchestrator.adapters.gpus.gpu import Slice
from gpu_orchestrator.api.gpunodestatus import (
    GpuNodeStatus,
    GpuNodeStatusSpec,
    GpuNodeStatusStatus,
    MigSlice,
    NodeDevice,
)
from gpu_orchestrator.api.wire import ObjectMeta
from gpu_orchestrator.apps.agent import health
from gpu_orchestrator.apps.agent.health import Rules
from gpu_orchestrator.apps.agent.memory import Memory
from gpu_orchestrator.apps.agent.survey import Look, survey
from tests.support.agent_builders import NODE, device, look, reading

RULES = Rules()
FORGET_S = 1000.0
NOW = datetime(2026, 11, 18, 15, 0, tzinfo=UTC)


def after(known: Memory, seen: Look, now: float = 1.0) -> Memory:
    return known.after(seen, now, rules=RULES, forget_s=FORGET_S)


def recalled(report: GpuNodeStatus, moment: datetime = NOW) -> Memory:
    return Memory.of(report, 0.0, moment)


def report(*devices: NodeDevice) -> GpuNodeStatus:
    status = GpuNodeStatusStatus(devices=list(devices))
    return GpuNodeStatus(ObjectMeta(NODE), GpuNodeStatusSpec(NODE), status)


def named(number: int, uuid: str, **more: object) -> NodeDevice:
    return NodeDevice(number, uuid=uuid, **{"health": "Healthy", **more})  # type: ignore[arg-type]


def test_restart_keeps_ids_verdicts_and_lost_devices() -> None:
    """The driver lost device 1 and numbers the others again, and the agent starts again from its report."""
    published = report(
        named(0, "GPU-a"), named(1, "GPU-b"), named(2, "GPU-c", health="Unhealthy", unhealthy_reason="XID 79")
    )
    known = after(recalled(published), look(device(0, "GPU-a"), device(1, "GPU-c")))
    assert known.ids == {"GPU-a": 0, "GPU-b": 1, "GPU-c": 2}
    assert known.conditions["GPU-a"].is_healthy
    assert known.conditions["GPU-c"].fault is not None, "until its checks have passed for a while"
    found = known.findings(look(device(0, "GPU-a"), device(1, "GPU-c")), {})
    assert [each.uuid for each in found.lost] == ["GPU-b"]
    assert not found.conditions["GPU-b"].is_healthy


def test_driver_that_is_gone_leaves_all_devices_lost() -> None:
    known = after(recalled(report(named(0, "GPU-a"), named(1, "GPU-b"))), Look())
    assert known.ids == {"GPU-a": 0, "GPU-b": 1}
    assert not any(each.is_healthy for each in known.conditions.values())


def test_lost_device_comes_back_under_its_id() -> None:
    known = after(recalled(report(named(5, "GPU-a"))), Look())
    known = after(known, look(device(0, "GPU-a")), 100.0)
    assert known.ids == {"GPU-a": 5}
    assert known.lost == {}


def test_lost_device_is_forgotten_after_a_while_and_its_id_is_free() -> None:
    known = after(recalled(report(named(0, "GPU-a"))), look(device(1, "GPU-b")), 0.0)
    known = after(known, look(device(1, "GPU-b")), FORGET_S - 1)
    assert known.ids == {"GPU-a": 0, "GPU-b": 1}
    known = after(known, look(device(1, "GPU-b")), FORGET_S)
    assert known.ids == {"GPU-b": 1}
    assert after(known, look(device(1, "GPU-b"), device(0, "GPU-c")), FORGET_S).ids["GPU-c"] == 0


def test_gpu_that_is_cut_into_slices_is_not_lost() -> None:
    slices = [device(n, f"MIG-{n}", Slice("1g.10gb", "GPU-a")) for n in range(2)]
    known = after(recalled(report(named(0, "GPU-a"))), look(*slices))
    assert known.ids == {"MIG-0": 0, "MIG-1": 1}


def test_gpu_that_gives_no_device_is_unhealthy_for_the_reason_that_the_driver_has() -> None:
    empty = "the GPU is in MIG mode and has no instances"
    seen = replace(look(device(1, "GPU-b")), withheld={"GPU-a": empty, "GPU-c": empty})
    known = after(recalled(report(named(0, "GPU-a"), named(1, "GPU-b"))), seen)
    assert known.ids == {"GPU-a": 0, "GPU-b": 1}, "no new device"
    (lost,) = survey(seen, known.findings(seen, {}), datetime.now(UTC)).devices[:1]
    assert (lost.uuid, lost.health, lost.unhealthy_reason) == ("GPU-a", "Unhealthy", empty)
    back = after(known, look(device(0, "GPU-a"), device(1, "GPU-b")), 2.0)
    assert after(back, look(device(0, "GPU-a")), 2.0 + RULES.recovery_s).conditions["GPU-a"].is_healthy


def test_slice_that_is_gone_was_removed() -> None:
    cut = named(0, "MIG-0", mig=MigSlice("1g.10gb", "GPU-a"))
    known = after(recalled(report(cut)), look(device(0, "GPU-a")))
    assert known.ids == {"GPU-a": 0}


def test_silent_driver_makes_every_device_unhealthy() -> None:
    known = after(Memory(), look(device(0), device(1)))
    silent = known.unread(42.0, 50.0, RULES)
    reasons = {each.fault.reason for each in silent.conditions.values() if each.fault}
    assert reasons == {"the driver has not answered for 42 s; look at the kernel log and restart the node"}
    assert silent.ids == known.ids


def test_one_faulty_device_does_not_touch_the_others() -> None:
    seen = look(device(0), device(1), readings=[reading("GPU-1", problem="GPU is lost")])
    known = after(Memory(), seen)
    assert known.conditions["GPU-0"].is_healthy
    assert not known.conditions["GPU-1"].is_healthy


def test_device_that_is_not_listed_is_lost_even_if_it_was_read() -> None:
    seen = replace(look(device(0)), readings={"GPU-0": reading(), "GPU-1": reading("GPU-1")})
    known = after(recalled(report(named(0, "GPU-0"), named(1, "GPU-1"))), seen)
    assert not known.conditions["GPU-1"].is_healthy


class Flapping:
    """A device that falls ill again as soon as it is healthy, and agents that look once a second."""

    def __init__(self) -> None:
        self.now, self.published = 0.0, NodeDevice(0)
        self.start()

    @property
    def moment(self) -> datetime:
        return NOW + timedelta(seconds=self.now)

    @property
    def is_ill(self) -> bool:
        return self.published.health == "Unhealthy"

    def start(self) -> None:
        """Start an agent that knows nothing but the last report. Its clock is another one."""
        known = report(self.published) if self.published.uuid else None
        self.began = self.now - 5e6
        self.memory = Memory.of(known, self.now - self.began, self.moment)

    def see(self, **what: Any) -> None:
        self.now += 1.0
        seen = look(device(0), readings=[reading(**what)])
        self.memory = after(self.memory, seen, self.now - self.began)
        status = survey(seen, self.memory.findings(seen, {}), self.moment)
        (self.published,) = status.devices
        self.memory = self.memory.with_published(status.devices)

    def recovery_s(self, *, restart_after_s: float = float("inf")) -> float:
        """Let it fall ill once and return how long its recovery takes; the agent is replaced on the way."""
        self.see(xid=79)
        began = self.now + 1.0
        while self.is_ill:
            self.see()
            if self.now - began == restart_after_s:
                self.start()
        return self.now - began


def test_agent_that_is_replaced_while_a_device_flaps_goes_on_counting() -> None:
    flapping, waited = Flapping(), []
    for _ in range(6):
        waited.append(flapping.recovery_s())
        flapping.start()
    assert waited == [60, 120, 240, 480, 960, 1800]
    assert flapping.published.relapses == 5
    flapping.now += health.STEADY_S
    flapping.start()
    assert flapping.recovery_s() == 60, "it was well for an hour"


def test_agent_that_is_replaced_during_a_recovery_waits_for_the_whole_of_it() -> None:
    flapping = Flapping()
    for _ in range(3):
        flapping.recovery_s()
    assert flapping.recovery_s(restart_after_s=100.0) == 100 + 480


def test_times_of_an_illness_are_published_once() -> None:
    flapping, seen = Flapping(), []
    for xid in (0, 79, 79, *[0] * 63, 79, 79):
        flapping.see(xid=xid)
        found = flapping.published
        if (now := (found.unhealthy_since[11:], found.recovered_at[11:], found.relapses)) not in seen:
            seen.append(now)
    assert seen == [
        ("", "", 0),
        ("15:00:02Z", "", 0),
        ("", "15:01:04Z", 0),
        ("15:01:07Z", "15:01:04Z", 1),
    ]


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11-18T15:00:00", "9999-12-31T23:59:59Z"])
def test_time_that_is_none_or_lies_ahead_ends_no_agent(text: str) -> None:
    known = recalled(report(named(0, "GPU-0", recovered_at=text, relapses=3)))
    assert after(known, look(device(0))).conditions["GPU-0"].is_healthy
