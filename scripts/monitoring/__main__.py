"""Write what watches a cluster: `make monitoring`."""

# ruff: noqa: TID251, T201 - a script, outside the pure packages

import sys
from pathlib import Path

from scripts.monitoring import alerts, dashboards


def main(folder: Path) -> None:
    written = {"prometheus_rule.yaml": alerts.prometheus_rule()}
    written |= {f"dashboards/{name}": text for name, text in dashboards.files().items()}
    for name, text in written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("name a folder: python -m scripts.monitoring config/monitoring")
    main(Path(sys.argv[1]))
