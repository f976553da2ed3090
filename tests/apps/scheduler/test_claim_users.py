"""A claim is assigned to one pod, and a pod to one claim."""

from gpu_orchestrator.apps.scheduler.cycle.claim_users import ClaimUsers
from tests.support.scheduler_objects import pod


def test_second_claim_of_a_pod_frees_the_first() -> None:
    users = ClaimUsers()
    assert users.assign(pod("p", claim="first"))
    assert users.assign(pod("p", claim="second"))
    assert users.user_of("default/first") is None
    assert users.assign(pod("q", claim="first"))
    assert not users.assign(pod("q", claim="second"))
    assert users.release("uid-p") == "default/second"
    assert users.assign(pod("r", claim="second"))
