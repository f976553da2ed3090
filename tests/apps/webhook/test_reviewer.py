"""What the webhook answers to reviews: patched, allowed or denied with advice."""

import base64
import json
from copy import deepcopy
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import deviceenv, mps, names, sharing
from gpu_orchestrator.api.gpuqueue import GpuQueue
from tests.support.admission_reviews import review
from tests.support.asgi import post
from tests.support.json_patch import applied
from tests.support.pod_json import pod
from tests.support.review_app import Site
from tests.support.scheduler_stage import claim

Json = dict[str, Any]
OURS = deviceenv.confined({})["env"]


async def answered(path: str, asked: Json, site: Site | None = None) -> Json:
    status, body = await post((site or Site()).app(), path, msgspec.json.encode(asked))
    assert status == 200, body
    found: Json = json.loads(body)["response"]
    return found


def patched(answer: Json, before: Json) -> Json:
    assert answer["allowed"]
    found: Json = applied(json.loads(base64.b64decode(answer["patch"])), before)
    return found


def asking(**annotations: str) -> Json:
    return pod(
        annotations={f"gpu.scheduling/{way.replace('_', '-')}": text for way, text in annotations.items()}
    )


def workload(**spec: Any) -> Json:
    return {
        "apiVersion": "gpu.warp.dev/v1alpha1",
        "kind": "GPUWorkload",
        "metadata": {"name": "a"},
        "spec": {"modelName": "a", "gpuCount": 1, **spec},
    }


@pytest.mark.parametrize(
    ("made", "milligpu"),
    [
        pytest.param(asking(gpus="3"), "3000", id="whole GPUs"),
        pytest.param(asking(claim="train"), "2000", id="a claim for two"),
        pytest.param(asking(claim_template="train"), "2000", id="a template"),
        pytest.param(asking(claim="memory"), "125", id="memory alone, of the largest device"),
        pytest.param(asking(claim="slice"), "142", id="a seventh"),
    ],
)
async def test_claimed_pod_counts_for_its_claim(made: Json, milligpu: str) -> None:
    found = patched(await answered("/mutate", review(made)), made)["spec"]
    count = {names.MILLIGPU: milligpu}
    assert found["containers"][0]["resources"] == {"requests": count, "limits": count}
    assert found["containers"][0]["env"] == OURS


@pytest.mark.parametrize(
    ("made", "words"),
    [
        pytest.param(asking(gpus="0"), "write a number from 1 to 64", id="bad number"),
        pytest.param(
            asking(claim="nobody"), "GpuClaim default/nobody does not exist; create it", id="no claim"
        ),
        pytest.param(
            asking(claim_template="no"), "template GpuClaim default/no does not exist", id="no template"
        ),
        pytest.param(asking(claim="a", gpus="1"), "keep one of them", id="two ways"),
    ],
)
async def test_claimed_pod_is_denied_with_advice(made: Json, words: str) -> None:
    answer = await answered("/mutate", review(made))
    assert not answer["allowed"]
    assert words in answer["status"]["message"]
    assert (answer["status"]["code"], answer["status"]["reason"]) == (403, "Forbidden")


@pytest.mark.parametrize(
    ("path", "made", "most"),
    [
        pytest.param("/mutate", asking(gpus="1"), 64, id="claimed"),
        pytest.param("/mutate/hide", pod(), 1000, id="hidden"),
    ],
)
async def test_pod_with_too_many_containers_is_denied_before_it_grows(
    path: str, made: Json, most: int
) -> None:
    """Three bytes of a body become three hundred of the answer, and a body may have three million."""
    for count in (most, most + 1):
        many = {**made, "spec": {"containers": [{}] * (count - 1), "initContainers": [{}]}}
        answer = await answered(path, review(many))
        assert answer["allowed"] is (count == most)
    assert f"has {most + 1} containers, and at most {most} are looked at" in answer["status"]["message"]


async def test_claim_that_cannot_be_read_is_worth_another_try() -> None:
    answer = await answered("/mutate", review(asking(claim="train")), Site(is_reachable=False))
    assert answer["status"]["code"] == 503
    assert "cannot be read now: connection refused; try again" in answer["status"]["message"]


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(review(pod()), id="not claimed"),
        pytest.param(review(asking(gpus="x"), operation="UPDATE"), id="an update"),
        pytest.param(review(None, operation="DELETE"), id="a deletion"),
        pytest.param(review(asking(gpus="x"), subResource="status", operation="UPDATE"), id="the status"),
        pytest.param(review({**asking(gpus="x"), "kind": "Binding"}, subResource="binding"), id="a binding"),
        pytest.param(review({**asking(gpus="x"), "apiVersion": "pods.io/v1"}), id="another's kind Pod"),
    ],
)
async def test_what_is_none_of_our_business_is_allowed(asked: Json) -> None:
    assert await answered("/mutate", asked) == {"uid": asked["request"]["uid"], "allowed": True}


@pytest.mark.parametrize(
    ("name", "uses_mps", "is_client"),
    [("memory", True, True), ("memory", False, False), ("train", True, False)],
    ids=["shared", "not installed", "whole GPUs"],
)
async def test_pod_with_a_shared_claim_becomes_a_client_of_mps(
    name: str, uses_mps: bool, is_client: bool
) -> None:
    made = asking(claim=name)
    found = patched(await answered("/mutate", review(made), Site(uses_mps=uses_mps)), made)
    assert (found["metadata"]["annotations"].get(names.SHARING) == names.MPS) == is_client
    env = {each["name"]: each.get("value") for each in found["spec"]["containers"][0]["env"]}
    assert (env.get(mps.MEMORY) == "0=10000M") == (mps.PIPES in env) == is_client
    assert [each for each in found["spec"]["containers"][0]["env"] if each in OURS] == OURS


async def test_creator_of_a_pod_that_is_in_the_way_of_mps_is_warned() -> None:
    made = asking(claim="memory")
    made["spec"]["containers"][0]["volumeMounts"] = [{"name": "own", "mountPath": sharing.ROOT}]
    answer = await answered("/mutate", review(made), Site(uses_mps=True))
    assert names.SHARING not in patched(answer, made)["metadata"]["annotations"]
    assert "nothing will hold the pod to its share" in answer["warnings"][0]


async def test_only_new_ephemeral_containers_are_filled_in() -> None:
    before = asking(gpus="not a number any more")
    before["spec"]["ephemeralContainers"] = [{"name": "old"}]
    after = deepcopy(before)
    after["spec"]["ephemeralContainers"].append({"name": "new"})
    asked = review(after, operation="UPDATE", before=before, subResource="ephemeralcontainers")
    found = patched(await answered("/mutate", asked), after)
    after["spec"]["ephemeralContainers"][1]["env"] = OURS
    assert found == after


async def test_pods_without_claim_are_hidden_and_claimed_ones_are_not() -> None:
    found = patched(await answered("/mutate/hide", review(pod())), pod())
    assert found["spec"]["containers"][0]["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert "patch" not in await answered("/mutate/hide", review(asking(gpus="1")))
    asked = review(
        pod(ephemeralContainers=[{"name": "new"}]), operation="UPDATE", subResource="ephemeralcontainers"
    )
    found = patched(await answered("/mutate/hide", asked), asked["request"]["object"])
    assert "env" in found["spec"]["ephemeralContainers"][0]
    assert "env" not in found["spec"]["containers"][0]


TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "a"}]}}


@pytest.mark.parametrize(
    ("made", "words"),
    [
        pytest.param(claim("a", model="NVIDIA-A100", vendor="amd"), "is a model of nvidia", id="vendor"),
        pytest.param(
            claim("a", exclusivity="MIG", migProfile="1g.10gb", vendor="amd"), "only NVIDIA's GPUs", id="MIG"
        ),
        pytest.param(
            {**claim("a"), "spec": {"selector": {"matchLabels": {"gpu model": "x"}}}},
            "'gpu model', which is no label's name",
            id="label",
        ),
        pytest.param(
            workload(claim={"devices": {"model": "AMD-MI300X", "vendor": "nvidia"}}),
            "spec.claim.devices.model 'AMD-MI300X' is a model of amd",
            id="claim of a workload",
        ),
        pytest.param(
            workload(template={"spec": {**TEMPLATE["spec"], "restartPolicy": "Always"}}),
            "a Job needs Never or OnFailure",
            id="template",
        ),
        pytest.param(
            workload(
                claim={"devices": {}},
                template={
                    "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}
                },
            ),
            "a device plugin would assign other devices",
            id="device plugin beside a claim",
        ),
    ],
)
async def test_request_that_nothing_can_serve_is_refused(made: Json, words: str) -> None:
    answer = await answered("/validate", review(made))
    assert not answer["allowed"]
    assert words in answer["status"]["message"]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        pytest.param(claim("a", preferIds=[1]), "no effect with policy contiguous", id="policy"),
        pytest.param(claim("a", policy="preferIds", preferIds=[1, 2]), "has 2 ids and count is 1", id="more"),
        pytest.param(
            claim("a", topology={"mode": "Required", "minBandwidthGBps": 600}), "on a single device", id="one"
        ),
        pytest.param(
            claim("a", 2, topology={"mode": "Ignore", "minBandwidthGBps": 600}), "with mode Ignore", id="mode"
        ),
        pytest.param(
            claim("a", exclusivity="Other"), "the webhook cannot check this", id="of a newer version"
        ),
    ],
)
async def test_field_without_effect_is_a_warning(made: Json, words: str) -> None:
    answer = await answered("/validate", review(made))
    assert answer["allowed"]
    (warning,) = answer["warnings"]
    assert words in warning


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(claim("a", 8, topology={"mode": "Required", "minBandwidthGBps": 600}), id="claim"),
        pytest.param(claim("a", vendor="nvidia", model="NVIDIA-H100-80GB-HBM3"), id="model of its vendor"),
        pytest.param(claim("a", vendor="amd", model="MI300X"), id="model of nobody we know"),
        pytest.param(
            {**claim("a"), "spec": {"selector": {"matchLabels": {"example.com/Pool_1": "x", "zone": ""}}}},
            id="labels",
        ),
        pytest.param(workload(), id="workload without a template"),
        pytest.param(workload(template=TEMPLATE), id="workload"),
    ],
)
async def test_request_in_order_is_allowed_without_a_word(made: Json) -> None:
    asked = review(made)
    assert await answered("/validate", asked) == {"uid": asked["request"]["uid"], "allowed": True}


def queue(name: str, **spec: Any) -> Json:
    return {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuQueue",
        "metadata": {"name": name},
        "spec": spec,
    }


def site_of(*queues: Json) -> Site:
    return Site(queues=tuple(msgspec.convert(each, GpuQueue) for each in queues))


RECLAIMS = {"preemption": {"reclaim": "Any"}}


@pytest.mark.parametrize(
    ("others", "made", "words"),
    [
        pytest.param([], queue("a", parent="b"), "queue b above it does not exist; until", id="parent"),
        pytest.param(
            [queue("b", parent="c")],
            queue("a", parent="b"),
            "queue c above it does not exist",
            id="above",
        ),
        pytest.param([], queue("a", borrowing=False), "nothing is guaranteed", id="nothing to use"),
        pytest.param([], queue("a", guaranteed={"*": 1000}), "preemption.reclaim is Never", id="no reclaim"),
        pytest.param(
            [], queue("a", limit={"*": 4}), "4 thousandths of a GPU; for 4 GPUs write 4000", id="GPUs meant"
        ),
        pytest.param(
            [],
            queue("a", namespaceSelector={"matchLabels": {"a b": "c"}}),
            "'a b', which is no label",
            id="label",
        ),
        pytest.param(
            [queue("top", limit={"*": 3000}), queue("b", parent="top", guaranteed={"*": 2000})],
            queue("a", parent="top", guaranteed={"*": 2000}, **RECLAIMS),
            "the queues below top are guaranteed 4 GPUs together, and it may use 3",
            id="more than the parent may use",
        ),
        pytest.param(
            [queue("b", parent="top", guaranteed={"H100": 2000})],
            queue("top", limit={"H100": 1000}),
            "are guaranteed 2 H100 together, and it may use 1",
            id="more of a model",
        ),
    ],
)
async def test_queue_that_cannot_be_had_yet_is_a_warning(others: list[Json], made: Json, words: str) -> None:
    answer = await answered("/validate", review(made), site_of(*others))
    assert answer["allowed"]
    (warning,) = answer["warnings"]
    assert words in warning


async def test_circle_of_queues_is_refused() -> None:
    site = site_of(queue("a", parent="b"), queue("b", parent="c"))
    answer = await answered("/validate", review(queue("c", parent="a")), site)
    assert not answer["allowed"]
    assert "queue c: the queues above it form a circle; give another spec.parent" in str(answer["status"])
    deep = [*(queue(f"q{n}", parent=f"q{n + 1}") for n in range(7)), queue("q7")]
    answer = await answered("/validate", review(queue("q", parent="q0")), site_of(*deep))
    assert "more than 8 queues are above each other" in str(answer["status"])


async def test_queue_in_order_is_allowed_without_a_word() -> None:
    site = site_of(queue("top", limit={"*": 4000}), queue("b", parent="top", guaranteed={"*": 2000}))
    made = queue("a", parent="top", guaranteed={"*": 2000}, namespaceSelector={}, **RECLAIMS)
    assert "warnings" not in await answered("/validate", review(made), site)


async def test_queue_is_not_refused_because_the_others_cannot_be_read() -> None:
    answer = await answered("/validate", review(queue("a", parent="b")), Site(is_reachable=False))
    assert answer["allowed"]
    assert answer["warnings"] == ["the other queues cannot be read now: connection refused"]


async def test_workload_with_an_old_mistake_can_lose_its_finalizer() -> None:
    old = workload(template={"spec": {**TEMPLATE["spec"], "nodeName": "mine"}})
    new = deepcopy(old)
    new["metadata"]["finalizers"] = []
    assert (await answered("/validate", review(new, operation="UPDATE", before=old)))["allowed"]
    new["spec"]["suspend"] = True
    assert not (await answered("/validate", review(new, operation="UPDATE", before=old)))["allowed"]


async def test_requests_are_counted_by_path_and_result() -> None:
    site = Site()
    for made in (pod(), asking(gpus="1"), asking(gpus="x")):
        await answered("/mutate", review(made), site)
    await post(site.app(), "/validate", b"nonsense")
    counted = [site.count("/mutate", result) for result in ("allowed", "patched", "denied", "refused")]
    assert counted == [1, 1, 1, 0]
    assert site.count("/validate", "refused") == 1


async def test_other_paths_and_methods_are_refused_in_words() -> None:
    application = Site().app()
    status, body = await post(application, "/mutates", b"")
    assert (status, b"known: /mutate, /mutate/hide, /validate" in body) == (404, True)
    status, body = await post(application, "/mutate", b"", method="GET")
    assert (status, b"by POST" in body) == (405, True)
    assert await post(application, "/healthz", b"", method="GET") == (200, b"ok")
