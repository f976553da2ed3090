"""Let the Python of another virtual environment see the packages of this one, editable ones included.

    .venv/bin/python scripts/add_packages.py .venv/models/bin/python

The other environment's own packages come first.
"""

# ruff: noqa: TID251 - a script, outside the pure packages

import subprocess
import sys
import sysconfig
from pathlib import Path


def main(python: str) -> None:
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    folder = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    ours = sysconfig.get_path("purelib")
    (folder / "packages_beside.pth").write_text(f"import site; site.addsitedir({ours!r})\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
