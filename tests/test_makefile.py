"""Every target of the Makefile runs: once, at toy size, or it is named here which test runs it.

A new target belongs into one of the tables below. Benchmarks print a table and last one line of JSON.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.paths import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
AT_ONCE = 3
LIMIT_S = 240


@dataclass(frozen=True, slots=True)
class Toy:
    """A benchmark at toy size, and some of the figures that its last line must have."""

    args: str
    figures: set[str]


PURE = {"bench-decide": Toy("--sizes 20 --decisions 100", {"median_us", "p99_us", "engine_per_s"})}
REAL = {
    "bench-bind": Toy(
        "--nodes 2 --pods 10 --rounds 1 --who kube-scheduler,lease,claims,plain",
        {"ratio_lease", "ratio_plain"},
    ),
    "bench-kube-parse": Toy("--pods 20 --rounds 1", {"seconds", "official_seconds", "speedup"}),
    "bench-kube-write": Toy("--pods 20 --rounds 1 --in-flight 4", {"creates_per_s", "binds_per_s"}),
    "bench-operator": Toy("--nodes 2 --workloads 4", {"scheduled_p99_s", "failover_s", "decided_anew"}),
    "bench-store": Toy("--rounds 1 --calls 20 --posts 20 --libraries ours,valkey-py", {"valkey-py"}),
    "bench-tasks": Toy("--rounds 1 --seconds 0.1 --trips 3 --peers taskiq", {"ratio_taskiq", "p99_ms"}),
    "bench-vram": Toy("--simulate 1xH200:141GiB --seconds 0.2", {"agrees", "storm_held", "ok"}),
    "bench-watchers": Toy("--clients 3 --seconds 0.2 --tasks 3", {"kib_per_client", "lag_ms_p99"}),
    "load": Toy("--seconds 2 --per-second 20", {"requests", "p99_ms", "server_errors"}),
}
HERE = {"accept", "api-docs", "clean", "crds", "fmt", "help", "lock", "test-fast", "tools"}
ELSEWHERE = {
    "run": "tests/test_readme.py runs its command",
    "demo": "tests/scenarios/operator/test_demo.py runs its command",
    "cluster": "tests/controlplane/test_up.py runs its command",
    "check": "`make test` runs it first",
    "test": "runs this test; inside itself it would remove the coverage that it gathers",
}


def make(*words: str, cwd: Path = ROOT, venv: str = sys.prefix) -> str:
    """What `make` prints. A make above this test must not pass on its flags, nor coverage its settings; and
    the environment that runs this test is never rebuilt below it."""
    above = ("MAKE", "MFLAGS", "ARGS", "COVERAGE_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(above)}
    command = ["make", f"VENV={venv}", f"--old-file={venv}/ready", *words]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def phony() -> set[str]:
    return {name for line in re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE) for name in line.split()}


def test_every_target_is_run_somewhere() -> None:
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", MAKEFILE, re.MULTILINE))
    assert targets == phony()
    assert targets == PURE.keys() | REAL.keys() | HERE | ELSEWHERE.keys()


def test_help_lists_every_target() -> None:
    assert set(re.findall(r"^  make (\S+) +\S", make("help"), re.MULTILINE)) == phony()


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, toolbox: object) -> Iterator[dict[str, "Future[str]"]]:
    """The real benchmarks that this session has selected, some at once: they mostly wait."""
    asked = [
        str(item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == "test_real_benchmark_at_toy_size"
    ]
    make("tools")
    make(f"{sys.prefix}/bench/ready")  # before they all need it at once
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(make, name, f"ARGS={REAL[name].args}") for name in asked}


@pytest.mark.parametrize("name", REAL)
def test_real_benchmark_at_toy_size(name: str, runs: dict[str, "Future[str]"]) -> None:
    assert last_line(runs[name].result()).keys() >= REAL[name].figures


@pytest.mark.parametrize("name", PURE)
def test_pure_benchmark_at_toy_size(name: str) -> None:
    assert last_line(make(name, f"ARGS={PURE[name].args}")).keys() >= PURE[name].figures


def last_line(printed: str) -> dict[str, object]:
    *table, last = printed.strip().splitlines()
    assert table
    found: dict[str, object] = json.loads(last)
    return found


def test_fast_tests_take_arguments() -> None:
    assert "1 passed" in make("test-fast", "ARGS=tests/test_house.py -k locks")


@pytest.mark.real
def test_accept_takes_arguments(toolbox: object, tmp_path: Path) -> None:
    assert "1 passed" in make("accept", f"ARGS=tests/test_house.py -k locks --ledger={tmp_path}")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """This tree, for targets that write into it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


def test_fmt_formats(copy: Path) -> None:
    ugly = copy / "benchmarks" / "table.py"
    ugly.write_text(ugly.read_text().replace(" = ", "="))
    make("fmt", cwd=copy)
    assert ugly.read_text() == (ROOT / "benchmarks" / "table.py").read_text()


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("crds", "config/crd/*.yaml"),
        ("crds", "docs/reference/crds.md"),
        ("api-docs", "docs/reference/api.md"),
    ],
)
def test_written_files_are_those_in_the_tree(name: str, written: str, copy: Path) -> None:
    wanted = {path.name: path.read_text() for path in ROOT.glob(written)}
    for path in copy.glob(written):
        path.unlink()
    make(name, cwd=copy)
    assert wanted
    assert {path.name: path.read_text() for path in copy.glob(written)} == wanted


def test_lock_knows_every_list(copy: Path) -> None:
    """Only what it would do: resolving needs a package index."""
    would = make("--dry-run", "lock", cwd=copy)
    names = {path.stem for path in (ROOT / "requirements").glob("*.in")}
    assert names <= set(re.findall(r"[a-z]+", would))


def test_clean_removes_what_make_made(copy: Path) -> None:
    made = [copy / name for name in (".venv", ".accept", ".mypy_cache")]
    for folder in made:
        folder.mkdir()
    make("clean", cwd=copy, venv=".venv")
    assert not any(folder.exists() for folder in made)
    assert (copy / "Makefile").exists()
