"""Which containers of a pod take their devices from the annotations."""

from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import deviceenv, names
from gpu_orchestrator.api.pod import PodSpec

Json = dict[str, Any]


def container(name: str = "main", **changed: Any) -> Json:
    """Return a container with our variables; `changed` replaces some of them by literals, or drops them."""
    made = deviceenv.confined({"name": name, "env": [{"name": "OTHER", "value": "1"}]})
    kept = [each for each in made["env"] if each["name"] not in changed]
    return {**made, "env": kept + [{"name": n, "value": value} for n, value in changed.items() if value]}


def spec(*containers: Json, init: tuple[Json, ...] = ()) -> PodSpec:
    return msgspec.convert({"containers": list(containers), "initContainers": list(init)}, PodSpec)


@pytest.mark.parametrize(
    ("found", "named"),
    [
        pytest.param(spec(container()), "", id="all by fieldRef"),
        pytest.param(spec({"name": "main"}), "container main may see", id="no variables"),
        pytest.param(
            spec(container(NVIDIA_VISIBLE_DEVICES="all")), "NVIDIA_VISIBLE_DEVICES must come", id="a literal"
        ),
        pytest.param(
            spec(container(AMD_VISIBLE_DEVICES="all")),
            "AMD_VISIBLE_DEVICES must",
            id="AMD's runtime shows all",
        ),
        pytest.param(
            spec(container(HIP_VISIBLE_DEVICES="")), "HIP_VISIBLE_DEVICES must", id="one is missing"
        ),
        pytest.param(spec(container(), {"name": "side"}), "container side may", id="the second container"),
        pytest.param(spec(container(), init=({"name": "load"},)), "container load", id="an init container"),
        pytest.param(
            spec({"name": "a"}, {"name": "b"}, {"name": "c"}), "container a and 2 more may", id="several"
        ),
    ],
)
def test_unconfined_containers_are_named(found: PodSpec, named: str) -> None:
    said = deviceenv.unconfined(found)
    assert named in said
    assert bool(said) == bool(named)


def test_variable_of_another_annotation_does_not_count() -> None:
    made = container()
    made["env"][0]["valueFrom"]["fieldRef"]["fieldPath"] = "metadata.annotations['mine']"
    assert made["env"][0]["name"] in deviceenv.unconfined(spec(made))


def test_only_the_device_variables_are_kept_in_memory() -> None:
    (found,) = spec(container()).containers
    assert len(found.env) == len(names.DEVICE_ENV)
