"""The script that writes docs/screens.md still finds every screen, and the document has them all."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import screens
from tests.support.paths import ROOT

WIDTH = 80


@pytest.mark.real
def test_every_screen_is_shown_and_fits(tmp_path: Path) -> None:
    document = tmp_path / "screens.md"
    command = [sys.executable, "-m", "scripts.screens", "--widths", str(WIDTH), "--to", str(document)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=240)
    _, live, *sections = document.read_text().split("\n## ")
    assert "sample-1" in live
    shown = {section.partition(":")[0]: section.split("```text\n")[1] for section in sections}
    assert shown.keys() == {title for title, _ in screens.SCREENS}
    for title, text in shown.items():
        assert text.strip("`\n"), f"{title} shows nothing"
        assert "Traceback" not in text
        too_wide = [line for line in text.splitlines() if len(line) > WIDTH]
        assert not too_wide or "all columns" in title, f"{title}: {too_wide}"


def test_document_has_every_screen_at_every_width() -> None:
    document = (ROOT / "docs" / "screens.md").read_text()
    for title, _ in screens.SCREENS:
        section = document.split(f"## {title}:")[1].split("\n## ")[0]
        assert all(f"{width} columns:" in section for width in screens.WIDTHS), title
