"""Our side of the page for those who come from Celery, dramatiq, RQ or Ray works as it is written."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support import documents
from tests.support.command_line import serving
from tests.support.paths import ROOT

pytestmark = pytest.mark.real
PAGE = "docs/coming-from.md"


def test_programs_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    files = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", (ROOT / PAGE).read_text(), flags=re.DOTALL)
    for name, code in files:
        (tmp_path / name).write_text(code)
    programs = documents.run_by("tests/client/test_coming_from.py", PAGE)
    assert len(programs) == 4
    with serving(tmp_path, "--app", "shop", "--app", "ray_tasks") as user:
        env = {**user.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        documents.type_in(programs, cwd=tmp_path, env=env, patience_s=1.0)
        assert "shop.report" in user.says("schedule", "apply", "shop")
