"""The shipped examples do what their comments say, as far as their text shows it."""

from typing import Any

import pytest
import yaml

from gpu_orchestrator.api import deviceenv, names
from tests.support.paths import ROOT

Json = dict[str, Any]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def pods() -> list[Any]:
    """Return the spec of every pod of the gpu-scheduler, also of those inside a Deployment."""
    found = []
    for path in EXAMPLES:
        for each in yaml.safe_load_all(path.read_text()):
            spec = (
                each["spec"].get("template", {}).get("spec", {})
                if each["kind"] == "Deployment"
                else each["spec"]
            )
            if spec.get("schedulerName") == names.SCHEDULER:
                found.append(pytest.param(spec, id=f"{path.stem}-{each['kind']}"))
    return found


@pytest.mark.parametrize("spec", pods())
def test_containers_of_claimed_pods_get_their_devices_from_the_annotations(spec: Json) -> None:
    """As the operator writes them; without them a container would see all GPUs of the node, or none."""
    written = {each["name"]: _path(each) for each in deviceenv.confined({})["env"]}
    for container in spec["containers"]:
        assert {each["name"]: _path(each) for each in container["env"]} == written


def _path(variable: Json) -> str:
    path: str = variable["valueFrom"]["fieldRef"]["fieldPath"]
    return path


def test_there_are_such_examples() -> None:
    assert len(pods()) == 3
