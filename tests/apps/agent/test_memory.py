"""What an agent remembers from look to look, and over its own end."""

from dataclasses import replace
from datetime import UTC, datetime

from gpu_orchestrator.adapters.gpus.gpu import Slice
from gpu_orchestrator.api.gpunodestatus import (
    GpuNodeStatus,
    GpuNodeStatusSpec,
    GpuNodeStatusStatus,
    MigSlice,
    NodeDevice,
)
from gpu_orchestrator.api.wire import ObjectMeta
from gpu_orchestrator.apps.agent.health import Rules
from gpu_orchestrator.apps.agent.memory import Memory
from gpu_orchestrator.apps.agent.survey import Look, survey
from tests.support.agent_builders import NODE, device, look, reading

RULES = Rules()
FORGET_S = 1000.0


def after(known: Memory, seen: Look, now: float = 1.0) -> Memory:
    return known.after(seen, now, rules=RULES, forget_s=FORGET_S)


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
    known = after(Memory.of(published, 0.0), look(device(0, "GPU-a"), device(1, "GPU-c")))
    assert known.ids == {"GPU-a": 0, "GPU-b": 1, "GPU-c": 2}
    assert known.conditions["GPU-a"].is_healthy
    assert known.conditions["GPU-c"].fault is not None, "until its checks have passed for a while"
    found = known.findings(look(device(0, "GPU-a"), device(1, "GPU-c")), {})
    assert [each.uuid for each in found.lost] == ["GPU-b"]
    assert not found.conditions["GPU-b"].is_healthy


def test_driver_that_is_gone_leaves_all_devices_lost() -> None:
    known = after(Memory.of(report(named(0, "GPU-a"), named(1, "GPU-b")), 0.0), Look())
    assert known.ids == {"GPU-a": 0, "GPU-b": 1}
    assert not any(each.is_healthy for each in known.conditions.values())


def test_lost_device_comes_back_under_its_id() -> None:
    known = after(Memory.of(report(named(5, "GPU-a")), 0.0), Look())
    known = after(known, look(device(0, "GPU-a")), 100.0)
    assert known.ids == {"GPU-a": 5}
    assert known.lost == {}


def test_lost_device_is_forgotten_after_a_while_and_its_id_is_free() -> None:
    known = after(Memory.of(report(named(0, "GPU-a")), 0.0), look(device(1, "GPU-b")), 0.0)
    known = after(known, look(device(1, "GPU-b")), FORGET_S - 1)
    assert known.ids == {"GPU-a": 0, "GPU-b": 1}
    known = after(known, look(device(1, "GPU-b")), FORGET_S)
    assert known.ids == {"GPU-b": 1}
    assert after(known, look(device(1, "GPU-b"), device(0, "GPU-c")), FORGET_S).ids["GPU-c"] == 0


def test_gpu_that_is_cut_into_slices_is_not_lost() -> None:
    slices = [device(n, f"MIG-{n}", Slice("1g.10gb", "GPU-a")) for n in range(2)]
    known = after(Memory.of(report(named(0, "GPU-a")), 0.0), look(*slices))
    assert known.ids == {"MIG-0": 0, "MIG-1": 1}


def test_gpu_that_gives_no_device_is_unhealthy_for_the_reason_that_the_driver_has() -> None:
    empty = "the GPU is in MIG mode and has no instances"
    seen = replace(look(device(1, "GPU-b")), withheld={"GPU-a": empty, "GPU-c": empty})
    known = after(Memory.of(report(named(0, "GPU-a"), named(1, "GPU-b")), 0.0), seen)
    assert known.ids == {"GPU-a": 0, "GPU-b": 1}, "no new device"
    (lost,) = survey(seen, known.findings(seen, {}), datetime.now(UTC)).devices[:1]
    assert (lost.uuid, lost.health, lost.unhealthy_reason) == ("GPU-a", "Unhealthy", empty)
    back = after(known, look(device(0, "GPU-a"), device(1, "GPU-b")), 2.0)
    assert after(back, look(device(0, "GPU-a")), 2.0 + RULES.recovery_s).conditions["GPU-a"].is_healthy


def test_slice_that_is_gone_was_removed() -> None:
    cut = named(0, "MIG-0", mig=MigSlice("1g.10gb", "GPU-a"))
    known = after(Memory.of(report(cut), 0.0), look(device(0, "GPU-a")))
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
