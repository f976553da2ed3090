"""The files of the chart that are made: they are those in the tree, and an edit that finds nothing fails."""

from pathlib import Path

import pytest
import yaml

from scripts.chart import edits
from scripts.chart.__main__ import files, main
from scripts.chart.edits import Edit, NotThere
from scripts.chart.readme import NoTable
from scripts.chart.schema import Undecided
from scripts.chart.templates import TEMPLATES
from scripts.chart.values import values
from tests.support.helm import CHART
from tests.support.kustomize import CONFIG

BY_HAND = {"_helpers.tpl", "checks.yaml", "dashboards.yaml", "NOTES.txt"}


def test_files_in_the_tree_are_up_to_date() -> None:
    stale = [name for name, text in files(CONFIG, CHART).items() if (CHART / name).read_text() != text]
    assert not stale, f"run: make charts ({', '.join(stale)})"


def test_no_other_templates_are_there() -> None:
    made = {CHART / name for name in files(CONFIG, CHART)}
    found = {path for path in (CHART / "templates").rglob("*") if path.is_file()}
    assert {path.name for path in found - made} == BY_HAND


def test_every_value_is_described() -> None:
    described = {each.path for each in values(CHART / "values.yaml")}

    def below(tree: object, path: str) -> list[str]:
        if path in described:
            return []
        if isinstance(tree, dict) and tree:
            return [left for name, each in tree.items() for left in below(each, f"{path}.{name}".lstrip("."))]
        return [path]

    assert below(yaml.safe_load((CHART / "values.yaml").read_text()), "") == []


def test_every_manifest_of_config_is_part_of_the_chart() -> None:
    """But those that kustomize alone reads, definitions, which are one file in the chart, and the rights of a
    cluster manager that scales workers: the chart does not install one."""
    patches = {"agent-mps/agent.yaml"} | {
        f"webhook-cert-manager/{name}.yaml" for name in ("deployment", "inject", "without")
    }
    without = ("autoscaler/", "crd/", "local/", "namespace/")
    there = {str(path.relative_to(CONFIG)) for path in CONFIG.glob("*/*.yaml")}
    wanted = {
        each for each in there if not each.endswith("kustomization.yaml") and not each.startswith(without)
    }
    assert {each.source for each in TEMPLATES} == wanted - patches


TEXT = """\
spec:
  replicas: 2
  items:
  - a: 1
  - b:
      c: 2
  last: x
"""


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (edits.put("2\n  items", "3\n  items"), TEXT.replace("replicas: 2", "replicas: 3")),
        (edits.block("  items:", "  none: []\n"), "spec:\n  replicas: 2\n  none: []\n  last: x\n"),
        (edits.after("  items:", "  - d\n"), TEXT.replace("  last", "  - d\n  last")),
        (edits.after("  - b:", "  - d\n"), TEXT.replace("  last", "  - d\n  last")),
        (edits.after("  - a: 1", "  - d\n"), TEXT.replace("  - b", "  - d\n  - b")),
        (
            edits.around("  last: x", "{{if}}\n", "{{end}}\n"),
            TEXT.replace("  last: x\n", "{{if}}\n  last: x\n{{end}}\n"),
        ),
    ],
)
def test_edits_change_a_line_and_what_belongs_to_it(edit: Edit, expected: str) -> None:
    assert edit(TEXT) == expected


@pytest.mark.parametrize(
    "edit",
    [
        edits.put("replicas: 3", "replicas: 4"),
        edits.put("c: 2", "c: 3", times=2),
        edits.block("  limits:", ""),
        edits.after("items:", ""),
        edits.only_if("x", "Deployment/a"),
    ],
)
def test_edit_that_finds_nothing_fails(edit: Edit) -> None:
    with pytest.raises(NotThere, match=r"was to be there once|was to be found"):
        edit(TEXT)


def test_change_of_config_names_the_manifest_that_no_longer_suits(tmp_path: Path) -> None:
    for path in CONFIG.glob("*/*.yaml"):
        copied = tmp_path / path.relative_to(CONFIG)
        copied.parent.mkdir(exist_ok=True)
        copied.write_text(path.read_text().replace("  replicas: 2", "  replicas: 3"))
    with pytest.raises(NotThere, match=r"config/manager/manager\.yaml: .*replicas: 2.*adapt scripts/chart"):
        files(tmp_path, CHART)


def test_new_value_needs_a_rule_and_the_readme_its_table(tmp_path: Path) -> None:
    given = (CHART / "values.yaml").read_text()
    (tmp_path / "values.yaml").write_text(given + "\n# -- New.\nextra: []\n")
    (tmp_path / "README.md").write_text("nothing")
    with pytest.raises(Undecided, match="value extra = "):
        main(CONFIG, tmp_path)
    (tmp_path / "values.yaml").write_text(given)
    with pytest.raises(NoTable):
        main(CONFIG, tmp_path)
