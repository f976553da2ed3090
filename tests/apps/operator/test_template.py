"""The user's template completed by the operator, and the errors for templates that are invalid."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from gpu_orchestrator.api import translate
from gpu_orchestrator.api.job import Job
from gpu_orchestrator.api.template_checks import InvalidTemplate
from gpu_orchestrator.apps.operator.jobs import inherited, template
from tests.support.operator_builders import workload

MAIN: dict[str, Any] = {"name": "main", "image": "trainer"}


def filled(spec: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    owner = workload(**fields) if spec is None else workload(template={"spec": spec}, **fields)
    return template.fill(owner, template.read(owner), nodes=["a"], resource="nvidia.com/gpu")


def mounting(*claims: str) -> dict[str, Any]:
    """Return a pod's spec with volumes of these PersistentVolumeClaims."""
    volumes = [{"name": "x", "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    return {"containers": [MAIN], "volumes": volumes}


def test_workload_without_template_runs_a_placeholder() -> None:
    pod = filled()["spec"]
    (main,) = pod["containers"]
    assert main["image"] == template.IMAGE
    assert {"name": "MODEL_NAME", "value": "bert-large"} in main["env"]
    assert {"name": "GPU_COUNT", "value": "4"} in main["env"]
    assert main["resources"] == {"requests": {"nvidia.com/gpu": "4"}, "limits": {"nvidia.com/gpu": "4"}}
    assert pod["restartPolicy"] == "Never"
    assert pod["priorityClassName"] == "gpu-normal"


def test_labels_are_on_the_pods() -> None:
    owner = workload(modelName="meta/模型", template={"metadata": {"labels": {"mine": "x", "app": "other"}}})
    pod = template.fill(owner, template.read(owner), nodes=["a"], resource="amd.com/gpu")
    assert pod["metadata"]["labels"] == {
        "mine": "x",
        "app": "meta",
        "gpu.warp.dev/workload": "bert",
        "gpu.warp.dev/controller": "gpu-orchestrator",
    }


def test_labels_of_the_workload_are_beneath_those_of_the_template() -> None:
    meta = {"labels": {"team": "vision", "mine": "y", "app": "z", "job-name": "x"}}
    owner = workload(meta=meta, template={"metadata": {"labels": {"mine": "x"}}})
    pod = template.fill(owner, template.read(owner), nodes=["a"], resource="amd.com/gpu")
    assert pod["metadata"]["labels"] == {
        "team": "vision",
        "mine": "x",
        "app": "bert-large",
        "gpu.warp.dev/workload": "bert",
        "gpu.warp.dev/controller": "gpu-orchestrator",
    }


@pytest.mark.parametrize(
    ("key", "job", "pods", "annotated"),
    [
        ("team", True, True, True),
        ("app.kubernetes.io/part-of", True, False, True),
        ("helm.sh/chart", True, False, False),
        ("kueue.x-k8s.io/queue-name", True, False, True),
        ("gpu.warp.dev/made-from", False, False, False),
        ("gpu.scheduling/allocated", False, False, False),
        ("gpu.scheduling/queue", False, True, False),
        ("batch.kubernetes.io/job-name", False, False, False),
        ("controller-uid", False, False, False),
        ("applyset.kubernetes.io/part-of", False, False, False),
        ("argocd.argoproj.io/tracking-id", False, False, False),
        ("kubectl.kubernetes.io/last-applied-configuration", True, True, False),
        ("meta.helm.sh/release-name", True, True, False),
    ],
)
def test_job_and_pods_inherit(key: str, job: bool, pods: bool, annotated: bool) -> None:
    found = {key: "x"}
    assert bool(inherited.labels(found)) is job
    assert bool(inherited.pod_labels(found)) is pods
    assert bool(inherited.annotations(found)) is annotated


@pytest.mark.parametrize("name", ["allocated", "visible-devices", "gpus", "claim", "claim-template", "gang"])
def test_plain_template_with_annotations_of_the_gpu_scheduler_is_refused(name: str) -> None:
    forged = workload(template={"metadata": {"annotations": {f"gpu.scheduling/{name}": "a:0"}}})
    with pytest.raises(InvalidTemplate) as raised:
        template.read(forged)
    assert f"metadata.annotations has gpu.scheduling/{name}, which only the gpu-scheduler" in str(
        raised.value
    )
    assert "ask for devices by spec.claim" in str(raised.value)


def test_job_is_claimed_by_its_scheduler_not_by_annotations() -> None:
    plain = {"metadata": {"annotations": {"gpu.scheduling/gpus": "1"}}}
    made = msgspec.convert({"metadata": {"name": "x"}, "spec": {"template": plain}}, Job)
    assert not made.is_claimed


def test_users_fields_stay_and_the_operators_are_added() -> None:
    main = {
        **MAIN,
        "env": [{"name": "GPU_COUNT", "value": "99"}, {"name": "LR", "value": "0.1"}],
        "resources": {"requests": {"cpu": 4}, "limits": {"nvidia.com/gpu": 4}},
    }
    pod = filled({"containers": [{"name": "logs", "image": "tail"}, main], "restartPolicy": "OnFailure"})[
        "spec"
    ]
    made = pod["containers"][1]
    assert pod["containers"][0] == {"name": "logs", "image": "tail"}
    assert [each["name"] for each in made["env"]] == ["MODEL_NAME", "GPU_COUNT", "LR"]
    assert made["env"][1]["value"] == "4"
    assert made["resources"]["requests"] == {"cpu": "4", "nvidia.com/gpu": "4"}
    assert pod["restartPolicy"] == "OnFailure"


def test_every_affinity_term_requires_the_node() -> None:
    """Terms are alternatives: one without the node would allow another node."""
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [each]}]} for each in "xy"]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": zones}}
    made = filled({"containers": [MAIN], "affinity": {"nodeAffinity": required, "podAffinity": {}}})
    terms = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [term["matchFields"][0]["values"] for term in terms["nodeSelectorTerms"]] == [["a"], ["a"]]
    assert [term["matchExpressions"] for term in terms["nodeSelectorTerms"]] == [
        zone["matchExpressions"] for zone in zones
    ]


def test_named_gpu_resource_is_the_one_asked_for() -> None:
    main = {**MAIN, "resources": {"limits": {"amd.com/gpu": "4"}}}
    assert template.read(workload(template={"spec": {"containers": [main]}})).resource == "amd.com/gpu"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        pytest.param({"nodeName": "b"}, "nodeName is 'b'; leave it out", id="node"),
        pytest.param({"schedulerName": "gpu-scheduler"}, "schedulerName is 'gpu-scheduler'", id="scheduler"),
        pytest.param({"restartPolicy": "Always"}, "restartPolicy is 'Always'; a Job needs", id="restart"),
        pytest.param({"priorityClassName": "mine"}, "set spec.priority instead", id="priority"),
        pytest.param(mounting("a/b"), "volumes has the claimName 'a/b'; name a Pers", id="no object's name"),
        pytest.param(mounting(""), "volumes has the claimName ''", id="no name"),
        pytest.param(
            mounting(*(f"data-{number}" for number in range(65))),
            "volumes that are claims: 65 found, up to 64 are taken",
            id="too many volumes",
        ),
        pytest.param({"containers": [MAIN, MAIN]}, "two containers called 'main'", id="same name"),
        pytest.param(
            {"containers": [{**MAIN, "resources": {"limits": {"nvidia.com/gpu": 2}}}]},
            "asks for 2 nvidia.com/gpu, spec.gpuCount is 4",
            id="other count",
        ),
        pytest.param(
            {"containers": [MAIN, {"name": "side", "resources": {"limits": {"nvidia.com/gpu": 4}}}]},
            "container 'side' asks for nvidia.com/gpu; only the main container may",
            id="side container with GPUs",
        ),
        pytest.param(
            {"containers": [{**MAIN, "resources": {"requests": {"memory": "many"}}}]},
            "'many' is not a quantity",
            id="quantity",
        ),
        pytest.param(
            {
                "containers": [
                    {**MAIN, "resources": {"limits": {"nvidia.com/gpu": 4}, "requests": {"amd.com/gpu": 4}}}
                ]
            },
            "asks for 4 amd.com/gpu",
            id="two vendors",
        ),
        pytest.param(
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Is"}]}]
                        }
                    }
                }
            },
            "operator 'Is'; known: In, NotIn",
            id="operator",
        ),
        pytest.param(
            {"containers": [{**MAIN, "resources": {"requests": {"memory": "100E"}}}]},
            "requests too much: 9007199254740992 or more of memory was asked for, which no node can have",
            id="more than can be counted",
        ),
        pytest.param(
            {"containers": [{**MAIN, "name": n, "resources": {"limits": {"cpu": "5000G"}}} for n in "ab"]},
            "requests too much: 9007199254740992 or more of cpu was asked for",
            id="more than can be counted when added up",
        ),
        pytest.param(
            {"nodeSelector": {f"k{n}": "x" for n in range(65)}},
            "spec.template: conditions on nodes (nodeSelector, node affinity): 65 found, up to 64 are taken",
            id="too long a selector",
        ),
        pytest.param(
            {"initContainers": [{"name": "i", "resources": {"limits": {"gpu.scheduling/milligpu": 0}}}]},
            "container 'i' asks for gpu.scheduling/milligpu; leave it out; only pods with a claim",
            id="capacity without a claim",
        ),
        pytest.param({"containers": [{**MAIN, "env": "x"}]}, "env`", id="environment"),
        pytest.param({"containers": "main"}, "`spec.template.spec.containers`", id="wrong type"),
    ],
)
def test_invalid_template_is_reported_with_field_and_advice(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidTemplate) as raised:
        template.read(workload(template={"spec": {"containers": [MAIN], **spec}}))
    assert words in str(raised.value)
    assert "spec.template" in str(raised.value)


def test_fill_does_not_change_the_template() -> None:
    owner = workload(template={"spec": {"containers": [MAIN]}})
    wanted = template.read(owner)
    assert template.fill(owner, wanted, nodes=["a"], resource="x") != template.fill(
        owner, wanted, nodes=["b"], resource="x"
    )
    assert template.read(owner) == wanted


VALUES = some.recursive(
    some.none() | some.booleans() | some.integers(-9, 9) | some.text(max_size=4),
    lambda inner: some.lists(inner, max_size=2) | some.dictionaries(some.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)
FIELDS = some.sampled_from(
    [
        *("containers", "initContainers", "affinity", "tolerations", "nodeSelector", "overhead", "resources"),
        *("nodeName", "restartPolicy", "schedulerName", "priorityClassName", "volumes"),
    ]
)
CONTAINERS = some.lists(
    some.fixed_dictionaries(
        {"name": some.sampled_from(["main", "b"])},
        optional={"env": VALUES, "resources": VALUES, "ports": VALUES, "image": VALUES},
    ),
    max_size=2,
)


@given(some.dictionaries(FIELDS, VALUES, max_size=3), some.none() | CONTAINERS)
def test_any_template_is_filled_or_raises_invalid_template(spec: dict[str, Any], containers: Any) -> None:
    """Never another exception, whatever the user writes."""
    given_spec = spec if containers is None else {**spec, "containers": containers}
    owner = workload(template={"spec": given_spec})
    with suppress(InvalidTemplate):
        wanted = template.read(owner)
        translate.shape(wanted.pod, 1)
        assert template.fill(owner, wanted, nodes=["a"], resource="nvidia.com/gpu")["spec"]["containers"]
