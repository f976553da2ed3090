"""The table of values in the chart's README."""

# ruff: noqa: TID251 - a script, outside the pure packages

import json
from pathlib import Path

from scripts.chart.values import Value, values

BEGIN = "<!-- values: made by `make charts` from values.yaml -->\n"
END = "<!-- end of values -->\n"
LONGEST = 60


class NoTable(Exception):
    """The README lost the lines between which its table is."""


def text(chart: Path) -> str:
    """Return the README with the table that values.yaml asks for."""
    readme = (chart / "README.md").read_text()
    before, begins, rest = readme.partition(BEGIN)
    _, ends, after = rest.partition(END)
    if not (begins and ends):
        raise NoTable(f"{chart / 'README.md'} needs the lines {BEGIN.strip()!r} and {END.strip()!r}")
    return f"{before}{BEGIN}{table(values(chart / 'values.yaml'))}{END}{after}"


def table(rows: list[Value]) -> str:
    lines = [
        f"| `{row.path}` | {_default(row)} | {row.about.replace('|', chr(92) + '|')} |\n" for row in rows
    ]
    return "".join(["| value | default | what |\n", "|---|---|---|\n", *lines])


def _default(row: Value) -> str:
    shown = json.dumps(row.default, ensure_ascii=False)
    return f"`{shown}`" if len(shown) <= LONGEST else "see values.yaml"
