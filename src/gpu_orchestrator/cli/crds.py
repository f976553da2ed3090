"""Writes the CustomResourceDefinitions into a folder: `python -m gpu_orchestrator.cli.crds config/crd`."""

import sys
from pathlib import Path

from gpu_orchestrator.api import crds


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in crds.files().items():
        (folder / name).write_text(text)
        print(folder / name)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("say which folder to write to: python -m gpu_orchestrator.cli.crds config/crd")
    main(Path(sys.argv[1]))
