"""The workflows of CI: valid, with pinned actions and no more rights than they use."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.toolbox import Toolbox
from tests.support.paths import ROOT

FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
PINNED = re.compile(r"uses: [\w-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
MAY_WRITE = {
    ("ci.yml", "publish-docs"): {"pages", "id-token"},
    ("release.yml", "provenance"): {"id-token", "attestations"},
    ("release.yml", "python"): {"id-token"},
    ("release.yml", "image"): {"packages"},
    ("release.yml", "chart"): {"packages"},
    ("release.yml", "publish"): {"contents"},
}
"""What each job may write. Jobs that run code of ours from a pull request write nothing."""


def load(file: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(file.read_text())
    return loaded


def jobs() -> dict[tuple[str, str], Any]:
    return {(file.name, name): job for file in FILES for name, job in load(file)["jobs"].items()}


@pytest.mark.real
def test_actionlint_finds_nothing(toolbox: Toolbox) -> None:
    # Without shellcheck and pyflakes, which it uses where they are installed: machines would differ.
    program = str(toolbox.get("actionlint")["actionlint"])
    words = [program, "-shellcheck=", "-pyflakes=", *map(str, FILES)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_actions_are_pinned_by_commit() -> None:
    used = [line.strip() for file in FILES for line in file.read_text().splitlines() if "uses: " in line]
    assert used
    assert not [line for line in used if not PINNED.search(line)]
    pins = {re.search(r"uses: (\S+)@(\w+) # (\S+)", line).groups() for line in used}  # type: ignore[union-attr]
    assert len({name for name, *_ in pins}) == len(pins), "one action at two versions"


def test_jobs_write_only_what_they_must() -> None:
    assert {str(load(file)["permissions"]) for file in FILES} == {"{'contents': 'read'}"}
    found = {
        place: {name for name, right in job.get("permissions", {}).items() if right == "write"}
        for place, job in jobs().items()
    }
    assert {place: rights for place, rights in found.items() if rights} == MAY_WRITE


def test_jobs_end_and_keep_no_credentials() -> None:
    for place, job in jobs().items():
        assert job["timeout-minutes"] <= 120, place
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, place


def test_no_text_of_strangers_is_put_into_a_shell() -> None:
    scripts = [step["run"] for job in jobs().values() for step in job["steps"] if "run" in step]
    assert not [script for script in scripts if "${{" in script]


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    scripts = "\n".join(step["run"] for job in jobs().values() for step in job["steps"] if "run" in step)
    named = {word for words in re.findall(r"\bmake ([a-z -]+)", scripts) for word in words.split()}
    assert named >= {"build", "chart", "check", "docs", "manifests", "release", "test"}
    assert named <= targets
