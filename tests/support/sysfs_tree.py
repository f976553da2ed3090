"""File systems of other machines: a file of `tests/data/gpus` has the contents of all their files."""

import json
from pathlib import Path

from tests.support.recorded_nvml import FOLDER


def unpack(name: str, folder: Path) -> Path:
    """Write the files of a machine into a folder, which then is its root."""
    for path, text in json.loads((FOLDER / f"{name}.json").read_text())["files"].items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder
