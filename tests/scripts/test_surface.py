"""`scripts/surface.py` finds something of every kind, and no words."""

import json
from typing import Any

import pytest

from scripts.surface import surface


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return surface()


def test_every_part_is_found(found: dict[str, Any]) -> None:
    assert set(found["kinds"]) == {
        "gpuclaims.yaml",
        "gpunodestatuses.yaml",
        "gpuqueues.yaml",
        "gpuworkloads.yaml",
    }
    assert "/api/v1/tasks" in found["http"]["paths"]
    assert any(each.startswith("counter callbacks ['outcome']") for each in found["metrics"])
    assert any(each.startswith("leading ['fence'") for each in found["log events"])
    assert "api_port=8000" in found["settings"]["gpu_orchestrator.adapters.settings"]
    assert "gpu.scheduling/claim" in found["names"]
    assert "workers" in found["store"]


def test_texts_that_only_explain_are_left_out(found: dict[str, Any]) -> None:
    assert '"description": "' not in json.dumps(found["http"])
