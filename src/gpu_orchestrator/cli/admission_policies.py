"""Write the admission policies into config."""

import sys
from pathlib import Path

from gpu_orchestrator.api.admission_policies import files


def main(config: Path) -> None:
    for name, text in files.files().items():
        path = config / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("name one folder: python -m gpu_orchestrator.cli.admission_policies config")
    main(Path(sys.argv[1]))
