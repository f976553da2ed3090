"""AdmissionReviews for tests: as an API server sends them, and as nobody would on purpose."""

import json
from copy import deepcopy
from random import Random
from typing import Any

from tests.support.hostile_text import DOCUMENTS, NUMBERS, WORDS
from tests.support.pod_json import pod
from tests.support.scheduler_stage import example

Json = dict[str, Any]
SUBRESOURCES = (
    *("", "", "", "ephemeralcontainers", "ephemeralcontainers", "status", "binding", "eviction", "exec"),
    *("attach", "log", "portforward", "proxy", "resize", "scale", "token", "nobody"),
)
OPERATIONS = ("CREATE", "CREATE", "UPDATE", "UPDATE", "DELETE", "CONNECT", "", "create")
ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1e308,
    10**30,
    "",
    [],
    {},
    [[]],
    [{}],
    {"": None},
    *NUMBERS,
    *WORDS,
)
SHIPPED = (
    *("claimed-pod.yaml", "bare-gpus.yaml", "claimed-deployment.yaml", "gpuclaim-sample.yaml"),
    *("gpuworkload-claimed.yaml", "gpuworkload-sample.yaml"),
)


def review(found: Any, *, operation: str = "CREATE", before: Any = None, **request: Any) -> Json:
    """Return the review of one object."""
    kind = found.get("kind", "Pod") if isinstance(found, dict) else "Pod"
    group, _, version = str(found.get("apiVersion", "v1") if isinstance(found, dict) else "v1").rpartition(
        "/"
    )
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "0df28fbd-5f5f-11e8-bc74-36e6bb280816",
            "kind": {"group": group, "version": version, "kind": kind},
            "resource": {"group": group, "version": version, "resource": f"{str(kind).lower()}s"},
            "name": "a",
            "namespace": "default",
            "operation": operation,
            "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
            "object": found,
            "oldObject": before,
            "dryRun": False,
            **request,
        },
    }


def real_reviews() -> list[Json]:
    """Return reviews of the shipped examples, and of pods in all forms."""
    shipped = [each for name in SHIPPED for each in example(name)]
    pods = [
        pod(annotations={"gpu.scheduling/gpus": "2"}),
        pod(annotations={"gpu.scheduling/claim": "train"}, initContainers=[{"name": "load"}]),
        pod(annotations={"gpu.scheduling/claim-template": "memory"}, schedulerName="default-scheduler"),
        pod({"name": "main", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}),
        pod(annotations={"gpu.scheduling/gpus": "1"}, ephemeralContainers=[{"name": "debugger"}]),
    ]
    return [review(each) for each in (*shipped, *pods)]


class Mutations:
    """Endless odd bodies, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._real = real_reviews()

    def body(self) -> bytes:
        made = deepcopy(self._random.choice(self._real))
        request = made["request"]
        if self._random.random() < 0.5:
            request["subResource"] = self._random.choice(SUBRESOURCES)
            request["operation"] = self._random.choice(OPERATIONS)
            request["oldObject"] = self._random.choice((None, deepcopy(request["object"]), *ODD))
        for _ in range(self._random.choice((0, 1, 1, 2, 5))):
            self._change(made)
        text = json.dumps(made, ensure_ascii=self._random.random() < 0.5)
        return self._changed_text(text).encode("utf-8", "surrogatepass")

    def _change(self, made: Json) -> None:
        """Replace, remove or double something anywhere in the review."""
        if not (places := list(_places(made))):
            return  # an earlier change has emptied it
        parent, place = self._random.choice(places)
        match self._random.randrange(4):
            case 0 if isinstance(parent, list):
                parent.insert(place, deepcopy(parent[place]))
            case 1:
                del parent[place]
            case 2 if isinstance(parent, dict):
                parent[self._random.choice(WORDS)] = parent.pop(place)
            case _:
                parent[place] = deepcopy(self._random.choice(ODD))

    def _changed_text(self, text: str) -> str:
        match self._random.randrange(12):
            case 0:  # a duplicate key, with another value
                doubled = self._random.choice(
                    ('"uid": "b", ', '"env": [], ', '"spec": null, ', '"object": 1, ')
                )
                return text.replace("{", "{" + doubled, self._random.randrange(1, 4))
            case 1:
                return text[: self._random.randrange(len(text))]
            case 2:  # deep inside, or all of it
                deep = self._random.choice(("[" * 199, "[" * 201, '{"a":' * 250, *DOCUMENTS[-8:]))
                return text.replace("null", deep, 1)
            case 3:
                at = self._random.randrange(len(text))
                odd = self._random.choice(
                    ('"', "\\", "\ud800", "\x00", ",", "é", "\\ud800", "\u202e", "]", "9")
                )
                return text[:at] + odd + text[at:]
        return text


def _places(value: Any) -> Any:
    """Yield every place in the value as (parent, key or index)."""
    inside = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    for place, each in inside:
        yield value, place
        if isinstance(each, (dict, list)):
            yield from _places(each)
