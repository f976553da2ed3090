"""Write what is made from the wire types: the CRDs into one folder, their reference into another."""

import sys
from pathlib import Path

from gpu_orchestrator.api import crds, reference


def main(definitions: Path, references: Path) -> None:
    for name, text in crds.files().items():
        _write(definitions / name, text)
    _write(references / "crds.md", reference.markdown())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(path)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("name two folders: python -m gpu_orchestrator.cli.crds config/crd docs/reference")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
