"""Which MPS daemons a node needs, and what makes a pod a client of one."""

from typing import Any

import pytest

from gpu_orchestrator.api import mps, sharing
from gpu_orchestrator.api.deviceleases import DeviceRef, Hold, Holder
from gpu_orchestrator.api.devices import Devices
from gpu_orchestrator.api.gpuclaim import GpuClaimSpec
from gpu_orchestrator.api.mps import Daemon
from gpu_orchestrator.core.answer import Placement
from tests.support.scheduler_objects import pod

HALF = Devices(exclusivity="Shared", memory_mib=40_960, share=500, count=2)


def hold(device: int, uid: str, *, of: str = "team", mib: int = 0, share: int = 0, **more: Any) -> Hold:
    holder = Holder(uid, uid, of, share, mib, since=more.pop("since", "t"))
    return Hold(
        DeviceRef("a", device, more.pop("uuid", f"GPU-{device}")), holder, more.pop("exclusive", False)
    )


@pytest.mark.parametrize(
    ("holds", "expected"),
    [
        pytest.param([], [], id="nobody"),
        pytest.param([hold(0, "p", exclusive=True)], [], id="a whole device needs none"),
        pytest.param([hold(0, "p", mib=1, uuid="")], [], id="a device that nobody can name"),
        pytest.param([hold(0, "p", mib=1, of="")], [], id="a holder of no namespace"),
        pytest.param(
            [hold(0, "p", mib=10), hold(0, "q", mib=10)],
            [Daemon("team", (0,), 10, 0, ("GPU-0",))],
            id="equal terms share one",
        ),
        pytest.param(
            [hold(0, "p", mib=10), hold(0, "q", mib=20), hold(0, "r", mib=10, of="other")],
            [
                Daemon("other", (0,), 10, 0, ("GPU-0",)),
                Daemon("team", (0,), 10, 0, ("GPU-0",)),
                Daemon("team", (0,), 20, 0, ("GPU-0",)),
            ],
            id="other terms and other namespaces do not",
        ),
        pytest.param(
            [hold(3, "p", share=250), hold(1, "p", share=250)],
            [Daemon("team", (1, 3), 0, 250, ("GPU-1", "GPU-3"))],
            id="one for all devices of a pod",
        ),
        pytest.param(
            [hold(0, "p", mib=10), hold(1, "p", mib=10, since="u")],
            [Daemon("team", (0,), 10, 0, ("GPU-0",)), Daemon("team", (1,), 10, 0, ("GPU-1",))],
            id="two attempts at one pod",
        ),
    ],
)
def test_daemons_of_a_node(holds: list[Hold], expected: list[Daemon]) -> None:
    assert sharing.daemons(holds) == sharing.daemons(reversed(holds)) == tuple(expected)


def test_daemon_is_told_the_ceiling_of_each_device_and_the_part_of_its_multiprocessors() -> None:
    made = Daemon("team", (4, 7), 20_480, 250, ("GPU-4", "GPU-7"))
    assert made.commands == (
        "set_default_device_pinned_mem_limit 0 20480M",
        "get_default_device_pinned_mem_limit 0",
        "set_default_device_pinned_mem_limit 1 20480M",
        "get_default_device_pinned_mem_limit 1",
        "set_default_active_thread_percentage 25",
    )
    assert made.answers == 3
    assert Daemon("team", (0,), 0, 1).commands == ("set_default_active_thread_percentage 1",)


def test_scheduler_tells_a_pod_the_folder_that_the_agent_makes() -> None:
    marked = pod("p", claim="c", meta={"annotations": {"gpu.scheduling/sharing": "mps"}})
    given = Placement("p", "a", devices=(1, 3), exclusive=False, milli=500, memory_mib=40_960)
    (made,) = sharing.daemons(
        [hold(at, "p", of="default", mib=40_960, share=500) for at in (3, 1)],
    )
    assert sharing.answer(marked, GpuClaimSpec(HALF), given) == {"gpu.scheduling/mps-folder": made.folder}
    assert len(f"{sharing.ROOT}/{sharing.OWNED}/{made.folder}/pipe/control_privileged") < 108
    assert sharing.answer(pod("p", claim="c"), GpuClaimSpec(HALF), given) == {}
    assert sharing.answer(marked, GpuClaimSpec(Devices()), given) == {}


def written(**container: Any) -> dict[str, Any]:
    made = {"name": "main", **container}
    return {"metadata": {"name": "p"}, "spec": {"initContainers": [{"name": "init"}], "containers": [made]}}


def test_client_gets_limits_and_pipes_to_read_in_every_container() -> None:
    made = sharing.client(written(env=[{"name": mps.MEMORY, "value": "0=1T"}, {"name": "X"}]), HALF)
    assert isinstance(made, dict)
    assert made["metadata"]["annotations"] == {"gpu.scheduling/sharing": "mps"}
    assert [each["name"] for each in made["spec"]["volumes"]] == ["gpu-mps"]
    for container in (*made["spec"]["initContainers"], *made["spec"]["containers"]):
        env = {each["name"]: each.get("value") for each in container["env"]}
        assert env[mps.MEMORY] == "0=40960M,1=40960M"
        assert (env[mps.PIPES], env[mps.PERCENT]) == ("/run/gpu-mps", "50")
        (mount,) = container["volumeMounts"]
        assert mount["subPathExpr"] == "owned/$(GPU_MPS_FOLDER)/pipe"
        assert mount["readOnly"], "a link that a client made there would be followed by a daemon of root"
    assert made["spec"]["containers"][0]["env"][-1] == {"name": "X"}


@pytest.mark.parametrize(
    ("container", "volumes", "why"),
    [
        ({"volumeMounts": [{"mountPath": "/run/gpu-mps"}]}, None, "container main mounts /run/gpu-mps"),
        ({}, [{"name": "gpu-mps"}], "a volume gpu-mps of its own"),
    ],
)
def test_pod_in_the_way_of_mps_stays_as_it_is(container: Any, volumes: Any, why: str) -> None:
    body = written(**container)
    body["spec"]["volumes"] = volumes
    made = sharing.client(body, HALF)
    assert isinstance(made, str)
    assert why in made


@pytest.mark.parametrize(
    "body",
    [{}, {"metadata": {}, "spec": []}, {"metadata": {}, "spec": {"containers": [1, {"env": 2}]}}],
)
def test_any_json_is_answered(body: Any) -> None:
    sharing.client(body, HALF)
