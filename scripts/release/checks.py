"""What keeps this tree from being released. Each finding says what to do."""

# ruff: noqa: TID251 - a script, outside the pure packages

import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path

import yaml

from scripts.release import changelog, git

VERSION = re.compile(r'^__version__ = "(\d+\.\d+\.\d+)"$', re.MULTILINE)


def version(root: Path) -> str:
    """Return the version of the package; raise `ValueError` if it is none that can be released."""
    file = root / "src/gpu_orchestrator/__init__.py"
    if match := VERSION.search(file.read_text()):
        return match[1]
    raise ValueError(f'{file.relative_to(root)} has no `__version__ = "1.2.3"`')


def problems(root: Path, today: date, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield all that is wrong, so that it is mended in one go."""
    ours = version(root)
    yield from _chart(root, ours)
    yield from changelog.problems((root / "CHANGELOG.md").read_text(), ours, today=today)
    yield from _commit(root, ours, environment)
    yield from _repository(root, environment)


def _chart(root: Path, ours: str) -> Iterator[str]:
    chart = yaml.safe_load((root / "charts/gpu-scheduler/Chart.yaml").read_text())
    for field in ("version", "appVersion"):
        if chart[field] != ours:
            yield f"charts/gpu-scheduler/Chart.yaml has {field} {chart[field]}; write {ours}"


def _commit(root: Path, ours: str, environment: Mapping[str, str]) -> Iterator[str]:
    if changed := git.changes(root):
        yield f"these files are not committed: {', '.join(changed[:5])}{' …' if changed[5:] else ''}"
    tagged = git.commit_of(root, f"v{ours}")
    if tagged and tagged != git.commit_of(root, "HEAD"):
        yield f"v{ours} is released: the tag is on another commit; raise __version__"
    pushed = environment.get("GITHUB_REF_NAME", f"v{ours}")
    if environment.get("GITHUB_REF_TYPE") == "tag" and pushed != f"v{ours}":
        yield f"the tag {pushed} was pushed, and the version here is {ours}"


def _repository(root: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """The page on the index leads to this address; that of somebody else must not be published."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    address = project["urls"]["Repository"]
    here = environment.get("GITHUB_REPOSITORY")
    if here and address.lower() != f"https://github.com/{here}".lower():
        yield f"pyproject.toml says that the repository is {address}; this is {here}: correct [project.urls]"
