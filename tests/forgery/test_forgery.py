"""Forgeries are refused with a reason, whether something fills pods in or not; what is legitimate passes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.cluster import ADMIN, OPTIONAL, Cluster
from controlplane.toolbox import Toolbox
from gpu_orchestrator.api.admission_policies import files
from tests.forgery import changes, controllers, legitimate, pods, ports, work
from tests.forgery.calls import PODS, TEAM, TENANT, Call, Json, Outcome, create
from tests.forgery.play import BARE, DOWN, POLICY, PROBES, WEBHOOK, Play, complaints, expectations, forgeries
from tests.forgery.sins import sins
from tests.support.scale import Scale
from tests.support.scheduler_stage import until
from tests.support.webhook_process import Webhook

CLASSES = sorted({call.id.split()[0] for call in forgeries()})
PHASES = (DOWN, POLICY, WEBHOOK)
UNFILLED = "without anything"


@pytest.fixture(scope="module")
def play(toolbox: Toolbox, scale: Scale, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """Try all tables in all phases, in a cluster of their own: policies hold for every namespace."""
    with Cluster.start(parts=OPTIONAL, toolbox=toolbox) as cluster:
        made = Play(cluster)
        made.prepare()
        try:
            act(made, tmp_path_factory.mktemp("webhook"), every=scale(test=3, accept=1))
            yield made
        finally:
            made.close()


def act(play: Play, folder: Path, *, every: int) -> None:
    """Without anything that fills pods in, all of the tables are tried; with it, every third, or all."""
    filled = [*filled_in(forgeries())[::every], *filled_in(expectations(is_filled=False))[::every]]
    some = corpus()[::every]
    wanted = [create(f"filled {name}", pods.filled(pod)) for name, pod in some]
    play.run(UNFILLED, [*wanted, *legitimate.unclaimed()])
    play.kubectl("apply", "-k", "mutating-policy")
    play.await_filling(is_on=True)
    play.run(BARE, [*(create(name, pod) for name, pod in some), *legitimate.unclaimed()])
    play.kubectl("apply", "-k", "policy")
    play.await_policies()
    play.run(POLICY, filled)
    play.kubectl("delete", "-k", "mutating-policy")
    play.await_filling(is_on=False)
    with Webhook(play.cluster.kubeconfig, folder) as webhook:
        webhook.install(play.cluster, TEAM, "hidden")
        play.await_filling(is_on=True)
        play.run(WEBHOOK, filled)
        play.knocks = ports.knock(webhook)
        webhook.kill()
    play.await_filling(is_on=False)
    play.run(DOWN, [*forgeries(), *expectations(is_filled=True)])


def filled_in(calls: list[Call]) -> list[Call]:
    """Return the calls that reach what fills pods in."""
    return [call for call in calls if is_creation(call) or "ephemeral" in call.path]


def is_creation(call: Call) -> bool:
    return (call.method, call.path) == ("POST", PODS) or call.path == f"{PODS}/applied"


def corpus() -> list[tuple[str, Json]]:
    """Return claimed pods of the tables that the pure function fills in, by name."""
    forged = [(call.id, call.body) for call in forgeries() if call.path == PODS and call.method == "POST"]
    some = (*forged[::2], *legitimate.claimed())
    return [(name, pod) for name, pod in some if pods.filled(pod) is not pod]


def test_tables_are_large_and_name_each_case_once() -> None:
    forged, passing = forgeries(), expectations(is_filled=True)
    assert len({call.id for call in (*forged, *passing)}) == len(forged) + len(passing)
    assert len(forged) >= 250
    assert len(passing) >= 100
    assert len(corpus()) >= 150
    assert set(PROBES) == {each.name for each in files.policies()}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("class_", CLASSES)
def test_forgery_is_refused_with_its_reason(play: Play, phase: str, class_: str) -> None:
    tried = [call for call in forgeries() if call.id.split()[0] == class_ and call.id in play.outcomes[phase]]
    check = refused_as_said if phase == DOWN else refused_or_repaired
    assert complaints(tried, play.outcomes[phase], check) == {}


def refused_as_said(call: Call, outcome: Outcome) -> str:
    if call.is_dropped:
        return refused_or_repaired(call, outcome)
    if outcome.answer is not None:
        return "was accepted"
    says = call.says.split(" | ") + [changes.STATUS] * call.path.endswith("/status")  # policies have no order
    is_said = any(words in outcome.why for words in says)
    return "" if is_said and outcome.status in (403, 422) else outcome.why


def refused_or_repaired(call: Call, outcome: Outcome) -> str:
    """Return an empty text if the call was refused, or if what it asked for was set right or ignored."""
    if outcome.answer is None:
        return "" if outcome.status in (403, 422) else outcome.why
    if call.is_dropped:
        annotations = outcome.answer["metadata"].get("annotations", {})
        return "was accepted" if "7" in annotations.values() else ""
    if not call.is_repaired:
        return "was accepted"
    return ", ".join(sins(outcome.answer, outcome.answer if call.method == "PATCH" else None))


@pytest.mark.parametrize("phase", PHASES)
def test_legitimate_requests_pass(play: Play, phase: str) -> None:
    passing = [call for call in expectations(is_filled=phase == DOWN) if call.id in play.outcomes[phase]]
    assert len(passing) > 30
    assert complaints(passing, play.outcomes[phase], lambda _, outcome: outcome.why) == {}


@pytest.mark.parametrize("phase", PHASES)
def test_claimed_pods_that_pass_keep_the_rules(play: Play, phase: str) -> None:
    known = play.outcomes[phase]
    passed = [
        create(name, pod) for name, pod in legitimate.claimed() if name in known and "canary" not in name
    ]
    assert (
        complaints(passed, play.outcomes[phase], lambda _, outcome: ", ".join(sins(outcome.answer or {})))
        == {}
    )


@pytest.mark.parametrize("phase", [BARE, *PHASES])
def test_pods_without_a_claim_stay_as_they_are(play: Play, phase: str) -> None:
    tried = [call for call in legitimate.unclaimed() if call.id in play.outcomes[phase]]
    assert len(tried) > 10
    for call in tried:
        before, after = (play.outcomes[each][call.id].answer for each in (UNFILLED, phase))
        assert before
        assert after
        assert comparable(before) == comparable(after), call.id


def test_mutating_policy_fills_in_what_the_pure_function_does(play: Play) -> None:
    compared = [name for name, _ in corpus() if name in play.outcomes[BARE]]
    assert len(compared) > 50
    for name in compared:
        wanted, made = play.outcomes[UNFILLED][f"filled {name}"], play.outcomes[BARE][name]
        if wanted.answer is None:  # something else is wrong with it
            assert made.answer is None, name
            continue
        assert made.answer is not None, f"{name}: {made.why}"
        assert comparable(made.answer) == comparable(wanted.answer), name


def test_mutating_policy_and_webhook_make_the_same_pods(play: Play) -> None:
    one, other = play.outcomes[POLICY], play.outcomes[WEBHOOK]
    assert one.keys() == other.keys()
    for name in one:
        made, same = one[name].answer, other[name].answer
        assert (made and comparable(made)) == (same and comparable(same)), name


def comparable(pod: Json) -> Json:
    """Return what tells two admitted pods apart: the name of the token's volume and times are by chance, and
    tolerations have no order."""
    spec = dict(pod["spec"])
    spec["tolerations"] = sorted(spec.get("tolerations", []), key=str)
    spec["volumes"] = [each for each in spec.get("volumes", []) if "kube-api-access" not in each["name"]]
    for kind in ("initContainers", "containers"):
        spec[kind] = [without_token(each) for each in spec.get(kind, [])]
    return {
        "spec": spec,
        "annotations": pod["metadata"].get("annotations"),
        "labels": pod["metadata"].get("labels"),
    }


def without_token(container: Json) -> Json:
    mounts = container.get("volumeMounts", [])
    return {**container, "volumeMounts": [each for each in mounts if "kube-api-access" not in each["name"]]}


def test_policies_have_no_type_errors(play: Play) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    found = {each["metadata"]["name"]: each for each in play.admin("GET", path)["items"]}
    assert {each.name for each in files.policies()} <= set(found)
    for each in files.policies():
        assert not found[each.name].get("status", {}).get("typeChecking", {}).get("expressionWarnings"), (
            each.name
        )


def test_tenant_is_not_refused_what_the_tables_need(play: Play) -> None:
    """Without these rights the cases would fail for another reason than the policies."""
    for call in forgeries():
        if call.user == TENANT and "cannot " not in call.says:
            assert "cannot patch resource" not in play.outcomes[DOWN][call.id].why, call.id


def test_controllers_make_no_forged_pods(play: Play) -> None:
    play.admin("POST", "/api/v1/namespaces", {"metadata": {"name": "forgers"}})
    controllers.forge(play, "forgers")


def test_relabelled_namespace_does_not_escape(play: Play) -> None:
    """F9: the label that the selectors read is kept by the API server, also for those who may label."""
    path, label = f"/api/v1/namespaces/{TEAM}", "kubernetes.io/metadata.name"
    for value in ("kube-system", None):
        body = {"metadata": {"labels": {label: value}}}
        kept = play.cluster.api.request("PATCH", path, body, content_type="application/merge-patch+json")
        assert kept["metadata"]["labels"][label] == TEAM


def test_webhook_that_is_called_directly_stores_nothing(play: Play) -> None:
    """F12: what is not a review is refused with a sentence, and a review is answered with advice alone."""
    assert len(play.knocks) == len(ports.KNOCKS)
    for each, status, answer in play.knocks:
        assert (status, each.says in answer, bool(answer)) == (each.status, True, True), (
            each,
            status,
            answer,
        )
    assert "p" not in {each["metadata"]["name"] for each in play.admin("GET", "/api/v1/pods")["items"]}


def test_scheduler_and_operator_work_under_the_policies(play: Play, tmp_path: Path) -> None:
    play.kubectl("apply", "-k", "mutating-policy")
    play.admin("POST", "/api/v1/namespaces", {"metadata": {"name": "work"}})
    until(lambda: play.admin("GET", "/api/v1/namespaces/work/serviceaccounts")["items"], "pods can be made")
    filled = Call("", "POST", PODS.replace(TEAM, "work"), pods.bare(), user=ADMIN)
    until(lambda: play.attempt(filled).answer, "claimed pods are filled in", 60)
    refused_before = work.refused(play)
    with work.shipped(play, "work", tmp_path) as stage:
        work.submit(play, "work", "on-a-plugin")
        work.await_success(play, "work", "on-a-plugin")
        count = controllers.employ(play, "work") + work.give(play, "work")
        work.await_success(play, "work", "claimed")
        until(lambda: len(stage.pods()) >= count, "all pods are made", 60)
        stage.wait_bound(within_s=60)
        # Before the end of the namespace: while it ends, the API server takes no more events from anybody.
        assert work.refused(play) == refused_before
        work.await_gone(play, "work", stage)
