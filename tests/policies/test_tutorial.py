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


@pytest.fixture
def blocks() -> dict[str, list[str]]:
    """Code of the tutorial, by language, in order."""
    found: dict[str, list[str]] = {}
    for language, code in re.findall(r"```(\w+)\n(.*?)```", TUTORIAL.read_text(), re.DOTALL):
        found.setdefault(language, []).append(code)
    return found


def test_the_tutorial_works_end_to_end(
    blocks: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy, discovery, trial = blocks["python"]
    _install(tmp_path, strategy, blocks["toml"][0])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cool_racks", raising=False)
    names: dict[str, object] = {}
    exec(discovery, names)
    with redirect_stdout(out := io.StringIO()):
        exec(trial, names)
    assert out.getvalue() == blocks["text"][0]


def test_the_strategy_is_ten_lines(blocks: dict[str, list[str]]) -> None:
    code = [line for line in blocks["python"][0].splitlines() if line and not line.startswith("#")]
    assert len(code) <= 10


def test_strategy_is_unknown_without_the_package() -> None:
    assert "coolRacks" not in {entry.name for entry in entry_points(group="gpu_orchestrator.strategies")}


def _install(folder: Path, module: str, metadata: str) -> None:
    """What pip leaves behind: the module, and a dist-info folder with the entry points."""
    (folder / "cool_racks.py").write_text(module)
    info = folder / "cool_racks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cool-racks\nVersion: 1.0\n")
    group = re.search(r'entry-points\."(.+?)"', metadata)
    assert group is not None
    entries = metadata.split("]\n", 1)[1].replace('"', "")
    (info / "entry_points.txt").write_text(f"[{group[1]}]\n{entries}")
