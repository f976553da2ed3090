"""The reference of the Python client has everything that the client exports."""

import re

import gpu_orchestrator
from gpu_orchestrator import client
from tests.support.paths import ROOT


def test_every_exported_name_is_described() -> None:
    headings = set(
        re.findall(r"^### `(\w+)`$", (ROOT / "docs/reference/python.md").read_text(), re.MULTILINE)
    )
    exported = {*client.__all__, *gpu_orchestrator.__all__} - {"__version__"}
    assert not exported - headings, (
        "name them in GROUPS of scripts/client_docs.py, and run `make client-docs`"
    )
