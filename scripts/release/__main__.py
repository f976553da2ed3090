"""`make release`: check the tree, run all tests, and make what is published, in dist/.

    python -m scripts.release [dist] [--no-tests]     the same; CI has run the tests of this commit before
    python -m scripts.release --notes                 print what CHANGELOG.md says of this version

dist/ has the wheel, the source distribution, the Helm chart, the list of what we depend on (SBOM), and
SHA256SUMS. The commit decides every byte of them: its time is the time of all files (SOURCE_DATE_EPOCH).
Nothing is published: .github/workflows/release.yml does that.
"""

# ruff: noqa: T201, TID251 - a script, outside the pure packages

import os
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from datetime import UTC, datetime
from pathlib import Path

from scripts.release import archives, changelog, checks, git, sbom

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"


def main(words: list[str]) -> int:
    parser = ArgumentParser(prog="make release", description="Make everything that a release consists of.")
    parser.add_argument("folder", nargs="?", type=Path, default=DIST, help="default: dist")
    parser.add_argument(
        "--no-tests", action="store_true", help="the tests of this commit have passed elsewhere"
    )
    parser.add_argument("--notes", action="store_true", help="print what CHANGELOG.md says of this version")
    asked = parser.parse_args(words)
    version = checks.version(ROOT)
    if asked.notes:
        print(changelog.sections((ROOT / "CHANGELOG.md").read_text())[0].text)
        return 0
    if asked.folder != DIST and asked.folder.exists() and any(asked.folder.iterdir()):
        print(f"{asked.folder} is not empty; name a folder that is, or none for dist", file=sys.stderr)
        return 1
    if wrong := list(checks.problems(ROOT, datetime.now(UTC).date(), os.environ)):
        print(f"{version} cannot be released:", *wrong, sep="\n- ", file=sys.stderr)
        return 1
    if not asked.no_tests:
        _run("make", "test")
    make(asked.folder)
    print(f"{version} is in {asked.folder}; push the tag v{version}, and CI publishes the same bytes")
    return 0


def make(folder: Path) -> None:
    """Make everything in an empty folder."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    moment = git.committed_at(ROOT)
    python = sys.executable
    _run(python, "-m", "hatchling", "build", "-d", str(folder), epoch=moment)
    chart = str(ROOT / "charts/gpu-scheduler")
    _run(python, "-m", "controlplane", "run", "helm", "package", chart, "--destination", str(folder))
    for package in folder.glob("*.tgz"):
        archives.repack(package, moment)
    sbom.write(ROOT, folder, moment)
    _check(folder)
    print(archives.write_sums(folder).read_text(), end="")


def _check(folder: Path) -> None:
    """Look at the packages as an index does, and at the SBOM as its readers do."""
    tools = Path(sys.prefix) / "release/bin/python"
    python = [str(each) for each in (*folder.glob("*.whl"), *folder.glob("*.tar.gz"))]
    _run(str(tools), "-m", "twine", "check", "--strict", *python)
    (document,) = folder.glob("*.cdx.json")
    _run(str(tools), str(ROOT / "scripts/release/check_sbom.py"), str(document))


def _run(*command: str, epoch: int | None = None) -> None:
    more = {} if epoch is None else {"SOURCE_DATE_EPOCH": str(epoch)}
    subprocess.run(command, cwd=ROOT, env={**os.environ, **more}, check=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as failed:
        sys.exit(
            f"{' '.join(map(str, failed.cmd))}: ended with {failed.returncode}; nothing is to be published"
        )
