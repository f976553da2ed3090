"""Write what is generated of the chart: `make charts`."""

# ruff: noqa: TID251, T201 - a script, outside the pure packages

import shutil
import sys
from pathlib import Path

from scripts.chart import readme, schema, templates


def files(config: Path, chart: Path) -> dict[str, str]:
    """Return the text of each generated file by its path in the chart."""
    made = dict(templates.files(config))
    made["values.schema.json"] = schema.text(chart)
    made["README.md"] = readme.text(chart)
    for each in sorted((config / "monitoring" / "dashboards").glob("*.json")):
        made[f"dashboards/{each.name}"] = each.read_text()
    return made


def main(config: Path, chart: Path) -> None:
    made = files(config, chart)
    _remove_old(chart)
    for name, text in made.items():
        path = chart / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    print(f"{chart}: {len(made)} files, the last of them {path}")


def _remove_old(chart: Path) -> None:
    """Remove the folders of templates and dashboards: what is gone from config goes here."""
    for folder in (*(chart / "templates").glob("*/"), chart / "dashboards"):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("name two folders: python -m scripts.chart config charts/gpu-scheduler")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
