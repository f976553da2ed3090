"""Settings of the scheduler: what they default to, and which names are refused."""

import pytest

from gpu_orchestrator.adapters.settings import BadSettings
from gpu_orchestrator.api import names
from gpu_orchestrator.apps.scheduler import settings


def test_device_leases_are_beside_the_leaders_unless_another_namespace_is_named() -> None:
    assert settings.load("", {"namespace": "ours"}).device_lease_namespace == "ours"
    found = settings.load("", {"namespace": "canary", "lease_namespace": "ours"})
    assert (found.namespace, found.device_lease_namespace) == ("canary", "ours")


def test_each_scheduler_name_has_its_own_leader() -> None:
    assert names.scheduler_lease("gpu-scheduler") == "gpu-scheduler.gpu.scheduling"
    assert names.scheduler_lease("canary") == "canary.gpu.scheduling"


@pytest.mark.parametrize("name", ["My_Scheduler", "", "-x", "x" * 201])
def test_scheduler_name_that_suits_no_lease_is_refused(name: str) -> None:
    with pytest.raises(BadSettings, match="schedulerName"):
        settings.load("", {"scheduler_name": name})


def test_unknown_rule_for_the_device_variables_is_refused() -> None:
    assert settings.load("", {}).require_device_env == "Warn"
    with pytest.raises(BadSettings, match="requireDeviceEnv"):
        settings.load("", {"require_device_env": "Maybe"})
