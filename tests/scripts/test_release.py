"""`make release` refuses what must not be published, and makes the same bytes from the same commit."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import pytest

from controlplane.toolbox import Toolbox
from scripts.release import __main__ as release
from scripts.release import archives, changelog, checks, sbom
from scripts.release import git as git_of_release
from tests.support.paths import ROOT
from tests.test_makefile import make

TODAY = date(2026, 1, 31)
RELEASED = (
    "# Changelog\n\n## 1.2.3 - 2026-01-31\n\n### Fixed\n\n- Something.\n\n## 1.2.2 - 2025-12-01\n\n- First.\n"
)
PROJECT = '[project.urls]\nRepository = "https://github.com/us/gpu-orchestrator"\n'
ELSEWHERE = (
    "pyproject.toml says that the repository is https://github.com/them/gpu-orchestrator; this is "
    "us/gpu-orchestrator: correct [project.urls]"
)
FROM_US = {"GITHUB_REPOSITORY": "us/gpu-orchestrator", "GITHUB_REF_TYPE": "tag", "GITHUB_REF_NAME": "v1.2.3"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree that can be released as 1.2.3."""
    write(
        tmp_path,
        {
            "src/gpu_orchestrator/__init__.py": '__version__ = "1.2.3"\n',
            "charts/gpu-scheduler/Chart.yaml": 'version: 1.2.3\nappVersion: "1.2.3"\n',
            "CHANGELOG.md": RELEASED,
            "pyproject.toml": PROJECT,
        },
    )
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def write(tree: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)


def commit(tree: Path) -> None:
    git(tree, "add", "--all")
    git(tree, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "-m", "a")


def git(tree: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=tree, check=True)


def test_good_tree_has_no_problems(tree: Path) -> None:
    assert list(checks.problems(tree, TODAY, FROM_US)) == []


@pytest.mark.parametrize(
    ("files", "found"),
    [
        pytest.param(
            {"charts/gpu-scheduler/Chart.yaml": 'version: 1.2.3\nappVersion: "1.2.2"\n'},
            ["charts/gpu-scheduler/Chart.yaml has appVersion 1.2.2; write 1.2.3"],
            id="chart of another version",
        ),
        pytest.param(
            {"CHANGELOG.md": RELEASED.replace("2026-01-31", "unreleased")},
            ["CHANGELOG.md gives 1.2.3 the day unreleased; write 2026-01-31"],
            id="no day",
        ),
        pytest.param(
            {"src/gpu_orchestrator/__init__.py": '__version__ = "1.3.0"\n'},
            [
                "charts/gpu-scheduler/Chart.yaml has version 1.2.3; write 1.3.0",
                "charts/gpu-scheduler/Chart.yaml has appVersion 1.2.3; write 1.3.0",
                "the newest section of CHANGELOG.md is 1.2.3; write `## 1.3.0 - unreleased` above it",
                "the tag v1.2.3 was pushed, and the version here is 1.3.0",
            ],
            id="nothing followed the version",
        ),
        pytest.param(
            {"pyproject.toml": PROJECT.replace("us/", "them/")},
            [ELSEWHERE],
            id="page that leads elsewhere",
        ),
    ],
)
def test_problems_are_named_together(tree: Path, files: dict[str, str], found: list[str]) -> None:
    write(tree, files)
    commit(tree)
    assert list(checks.problems(tree, TODAY, FROM_US)) == found


def test_changed_files_and_a_used_version_are_refused(tree: Path) -> None:
    git(tree, "tag", "v1.2.3")
    write(tree, {"a": "", "b": ""})
    commit(tree)
    write(tree, {"a": "changed", "c": "new"})
    assert list(checks.problems(tree, TODAY, {})) == [
        "these files are not committed: a, c",
        "v1.2.3 is released: the tag is on another commit; raise __version__",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("# Changelog\n", "the newest section of CHANGELOG.md is none; write", id="empty"),
        pytest.param(
            "## [1.2.3]\n", "CHANGELOG.md has `## [1.2.3]`; write `## 1.2.3 - 2026-01-31`", id="heading"
        ),
        pytest.param("## 1.2.3 - soon\n", "CHANGELOG.md has the day soon", id="no date"),
        pytest.param("## 1.2.3 - unreleased\n### New\n- a\n", "has `### New`; known are Added", id="kind"),
        pytest.param("## 1.2.3 - unreleased\n", "CHANGELOG.md says nothing of 1.2.3", id="nothing said"),
        pytest.param(
            "## 1.2.3 - unreleased\n- a\n## 1.10.0 - 2026-01-01\n- b\n", "are not in order", id="order"
        ),
        pytest.param(
            "## 1.2.3 - unreleased\n- a\n## 1.2.2 - unreleased\n- b\n", "only the newest", id="two unreleased"
        ),
    ],
)
def test_bad_changelog_is_refused(text: str, problem: str) -> None:
    assert problem in "; ".join(changelog.problems(text, "1.2.3"))


def test_our_changelog_has_a_section_for_our_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert list(changelog.problems(text, checks.version(ROOT))) == []


def test_sbom_has_every_pin_of_what_runs_once_with_its_checksums() -> None:
    listed = sbom.document(ROOT, 1_760_000_000)
    locks = [(ROOT / f"requirements/{name}.txt").read_text() for name in sbom.LOCKS]
    pins = set(re.findall(r"^([\w.-]+==[^\s;]+)", "\n".join(locks), re.MULTILINE))
    components = {f"{each['name']}=={each['version']}": each for each in listed["components"]}
    assert components.keys() == pins
    assert len(listed["components"]) == len(pins)
    wanted = set(re.findall(r"sha256:([0-9a-f]{64})", "\n".join(locks)))
    found = {
        checksum["content"]
        for each in components.values()
        for file in each["externalReferences"]
        for checksum in file["hashes"]
    }
    assert found == wanted
    assert components[next(name for name in pins if name.startswith("aiohttp=="))]["scope"] == "required"
    assert components[next(name for name in pins if name.startswith("fastapi=="))]["scope"] == "optional"
    assert listed["metadata"]["timestamp"] == "2025-10-09T08:53:20Z"
    assert sbom.document(ROOT, 1_760_000_000) == listed


def test_sbom_covers_every_extra_but_that_of_tests() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = {extra for extras in sbom.LOCKS.values() for extra in extras.split(", ") if extra}
    assert listed == project["optional-dependencies"].keys() - {"controlplane"}


def test_line_without_a_checksum_is_no_pin() -> None:
    with pytest.raises(ValueError, match="this is no pin with hashes: aiohttp"):
        list(sbom.pinned("# made by make lock\naiohttp==3.14\n"))


def test_chart_packed_at_another_time_is_the_same(tmp_path: Path) -> None:
    files = ["c/Chart.yaml", "c/templates/x.yaml"]
    one = packed(tmp_path / "one.tgz", files, moment=1_700_000_000)
    other = packed(tmp_path / "other.tgz", files[::-1], moment=1_800_000_000)
    assert one.read_bytes() != other.read_bytes()
    for each in (one, other):
        archives.repack(each, 1_750_000_000)
    assert one.read_bytes() == other.read_bytes()
    shutil.unpack_archive(one, tmp_path / "out", "gztar", filter="data")
    assert {name: (tmp_path / "out" / name).read_text() for name in files} == {name: name for name in files}


def packed(package: Path, files: list[str], moment: int) -> Path:
    """Pack files whose content is their name."""
    with tarfile.open(package, "w:gz") as archive:
        for name in files:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uid = len(name), moment, moment % 1000
            archive.addfile(info, io.BytesIO(name.encode()))
    return package


@pytest.mark.real
def test_release_has_everything_and_its_checksums(toolbox: Toolbox, tmp_path: Path) -> None:
    toolbox.get("helm")
    make(f"{sys.prefix}/release/ready")
    release.make(tmp_path / "first")
    made = {each.name for each in (tmp_path / "first").iterdir()}
    version = checks.version(ROOT)
    assert made == {
        f"gpu_orchestrator-{version}-py3-none-any.whl",
        f"gpu_orchestrator-{version}.tar.gz",
        f"gpu-scheduler-{version}.tgz",
        f"gpu-orchestrator-{version}.cdx.json",
        "SHA256SUMS",
    }
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    subprocess.run(check, cwd=tmp_path / "first", check=True)
    check_wheel_of_the_source(tmp_path)
    newest = time.time() - 1
    chart = tmp_path / "first" / f"gpu-scheduler-{version}.tgz"
    with tarfile.open(chart) as archive:
        assert max(each.mtime for each in archive.getmembers()) < newest
    assert json.loads((tmp_path / "first" / f"gpu-orchestrator-{version}.cdx.json").read_text())["components"]


def check_wheel_of_the_source(folder: Path) -> None:
    """Check that the source distribution has all that it takes, and makes the very same wheel."""
    (source,) = (folder / "first").glob("*.tar.gz")
    (wheel,) = (folder / "first").glob("*.whl")
    shutil.unpack_archive(source, folder, "gztar", filter="data")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "again")]
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(git_of_release.committed_at(ROOT))}
    tree = folder / source.name.removesuffix(".tar.gz")
    subprocess.run(command, cwd=tree, env=env, check=True, capture_output=True)
    assert (folder / "again" / wheel.name).read_bytes() == wheel.read_bytes()


def test_page_of_the_index_has_no_relative_links() -> None:
    script = (
        "from hatchling.metadata.core import ProjectMetadata\n"
        "from hatchling.plugin.manager import PluginManager\n"
        f"print(ProjectMetadata({str(ROOT)!r}, PluginManager()).core.readme)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    page, readme = done.stdout, (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", readme)) > 20
    assert not [link for link in links if not link.startswith("https://github.com/")]
    assert re.sub(r"\]\([^)]+\)", "", page).strip() == re.sub(r"\]\([^)]+\)", "", readme).strip()


def test_notes_are_those_of_the_newest_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["--notes"]) == 0
    assert capsys.readouterr().out.startswith("The first release.")


def test_unfinished_tree_is_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_REPOSITORY", "somebody/else")
    assert release.main([str(tmp_path / "dist"), "--no-tests"]) == 1
    assert "cannot be released:\n- " in capsys.readouterr().err
    assert not (tmp_path / "dist").exists()


def test_folder_of_others_is_not_emptied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("")
    assert release.main([str(tmp_path), "--no-tests"]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert (tmp_path / "mine").exists()


def test_checksums_are_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "SHA256SUMS").write_text("old")
    assert archives.write_sums(tmp_path).read_text() == f"{hashlib.sha256(b'1').hexdigest()}  a\n"
