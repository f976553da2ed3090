"""`scripts/surface.py` finds something of every kind, and no words."""

import json

from scripts.surface import surface


def test_every_part_is_found() -> None:
    found = surface()
    assert set(found["kinds"]) == {"gpuclaims.yaml", "gpunodestatuses.yaml", "gpuworkloads.yaml"}
    assert "/api/v1/tasks" in found["http"]["paths"]
    assert any(each.startswith("counter callbacks ['outcome']") for each in found["metrics"])
    assert any(each.startswith("leading ['fence'") for each in found["log events"])
    assert "api_port=8000" in found["settings"]["gpu_orchestrator.adapters.settings"]
    assert "gpu.scheduling/claim" in found["names"]
    assert "workers" in found["store"]


def test_texts_that_only_explain_are_left_out() -> None:
    assert '"description": "' not in json.dumps(surface()["http"])
