"""The tutorial works: its code is run as written, as an installed package."""

import io
import re
import sys
from contextlib import redirect_stdout
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.support.paths import ROOT

TUTORIAL = ROOT / "docs/tutorials/your-own-strategy.md"


def code(language: str) -> list[str]:
    """Return the blocks of the tutorial in this language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)


def test_the_tutorial_works_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, discovery, trial = code("python")
    install_the_package(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cool_racks", raising=False)
    names: dict[str, object] = {}
    exec(discovery, names)
    with redirect_stdout(out := io.StringIO()):
        exec(trial, names)
    assert out.getvalue() == code("text")[0]


def test_the_strategy_is_ten_lines() -> None:
    lines = [line for line in code("python")[0].splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 10


def test_strategy_is_unknown_without_the_package() -> None:
    assert "coolRacks" not in {entry.name for entry in entry_points(group="gpu_orchestrator.strategies")}


def install_the_package(folder: Path) -> None:
    """Leave behind what pip would: the module, and a dist-info folder with the entry points."""
    module, metadata = code("python")[0], code("toml")[0]
    (folder / "cool_racks.py").write_text(module)
    info = folder / "cool_racks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cool-racks\nVersion: 1.0\n")
    group = re.search(r'entry-points\."(.+?)"', metadata)
    assert group is not None
    entries = metadata.split("]\n", 1)[1].replace('"', "")
    (info / "entry_points.txt").write_text(f"[{group[1]}]\n{entries}")
