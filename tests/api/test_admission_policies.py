"""The admission policies are made from the names they guard, equal those in config, and fail closed."""

import re

import pytest

from gpu_orchestrator.api import names
from gpu_orchestrator.api.admission_policies import cel, claimed_pods, components, files, filling
from gpu_orchestrator.api.admission_policies.policy import Policy
from gpu_orchestrator.api.claims import BadGpuRequest, read_gpus
from tests.support import yaml_text
from tests.support.paths import ROOT

each_policy = pytest.mark.parametrize("policy", files.policies(), ids=lambda policy: policy.name)


def test_files_match_the_code() -> None:
    """If this fails, run `make policies`."""
    found = {
        f"{folder}/{path.name}": path.read_text()
        for folder in ("policy", "mutating-policy")
        for path in (ROOT / "config" / folder).glob("*.yaml")
    }
    assert found == files.files()


@each_policy
def test_policy_fails_closed_and_is_bound(policy: Policy) -> None:
    made, binding = policy.manifests()
    assert made["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"] == {"policyName": policy.name, "validationActions": ["Deny"]}


@each_policy
def test_every_message_is_one_line_that_the_api_server_accepts(policy: Policy) -> None:
    for each in policy.validations:
        assert "\n" not in each.message
        assert len(each.message) < 1024


def test_value_of_high_priority_is_that_of_the_class() -> None:
    text = (ROOT / "config" / "priority" / "priority_classes.yaml").read_text()
    values = {each["metadata"]["name"]: each["value"] for each in yaml_text.load_all(text)}
    assert values[components.HIGH] == components.HIGH_VALUE


def test_files_are_read_back_as_they_were_meant() -> None:
    """Long text is folded when it is written, which must not change it."""
    for name, policies in files.VALIDATING.items():
        documents = yaml_text.load_all(files.files()[f"policy/{name}"])
        assert documents == [part for each in policies for part in each.manifests()]
    filled = yaml_text.load_all(files.files()["mutating-policy/filling.yaml"])
    assert filled == [part for each in filling.MUTATIONS for part in each.manifests()]


@pytest.mark.parametrize(
    "text", ["1", "9", "10", "59", "60", "64", "007", "0", "00", "65", "70", "100", "", "-1", "1.0", " 1"]
)
def test_pattern_of_gpus_is_what_the_scheduler_reads(text: str) -> None:
    try:
        is_read = bool(read_gpus(text))
    except BadGpuRequest:
        is_read = False
    assert bool(re.search(claimed_pods.GPUS_PATTERN, text)) is is_read


@pytest.mark.parametrize(
    ("user", "is_scheduler"),
    [
        ("system:serviceaccount:gpu-orchestrator-system:gpu-scheduler", True),
        ("system:serviceaccount:gpu-orchestrator-system:canary-gpu-scheduler", True),
        ("system:serviceaccount:gpu-orchestrator-system:gpu-scheduler-webhook", False),
        ("system:serviceaccount:gpu-orchestrator-system:gpu-scheduler-agent", False),
        ("system:serviceaccount:gpu-orchestrator-system:xgpu-scheduler", False),
        ("system:serviceaccount:team:gpu-scheduler", False),
        ("gpu-scheduler", False),
    ],
)
def test_schedulers_are_known_by_their_service_account(user: str, is_scheduler: bool) -> None:
    (pattern,) = re.findall(r"matches\('(.*)'\)", cel.IS_SCHEDULER)
    assert bool(re.search(pattern, user)) is is_scheduler
    assert names.NAMESPACE in pattern
