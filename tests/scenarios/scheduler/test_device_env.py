"""Pods whose containers do not take their devices from the annotations: warned of, refused or ignored."""

import pytest

from controlplane.api import Json
from tests.support.scheduler_stage import Stage, example, pod, until

pytestmark = pytest.mark.open  # the policies would refuse such pods

UNCONFINED = "container main may see all GPUs of the node: NVIDIA_VISIBLE_DEVICES"


def confined() -> Json:
    """Return the shipped example, for the scheduler of the stage."""
    (made,) = example("bare-gpus.yaml")
    del made["spec"]["schedulerName"]
    return made


def test_unconfined_pod_is_warned_of_in_the_event_of_its_bind(stage: Stage) -> None:
    (node,) = stage.gpu_nodes(1, gpus=4)
    stage.scheduler()
    stage.create(pod("open", gpus=1), confined())
    stage.wait_bound("open", "two-gpus")
    assert UNCONFINED in stage.wait_event("open", "Scheduled: bound to")
    assert stage.wait_event("two-gpus", "Scheduled: bound to").startswith(
        f"Scheduled: bound to {node}, devices"
    )
    assert "may see" not in "".join(stage.events("two-gpus"))
    assert len(stage.events("open")) == 1, "no write more than for other pods"


def test_unconfined_pod_waits_if_the_settings_say_so(stage: Stage) -> None:
    stage.gpu_nodes(1, gpus=4)
    stage.scheduler(requireDeviceEnv="Refuse")
    stage.create(pod("open", gpus=1), confined())
    stage.wait_bound("two-gpus")
    stage.wait_event("open", f"FailedScheduling: {UNCONFINED}")
    assert not stage.bound(["open"])


def test_unconfined_pod_is_bound_without_a_word_if_the_settings_say_so(stage: Stage) -> None:
    stage.gpu_nodes(1, gpus=4)
    stage.scheduler(requireDeviceEnv="Ignore")
    stage.create(pod("open", gpus=1))
    stage.wait_bound("open")
    until(lambda: stage.events("open"), "the event is written")
    assert "may see" not in "".join(stage.events("open"))
