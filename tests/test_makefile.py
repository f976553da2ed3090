"""Run every target of the Makefile at toy size, or name the test that runs it; check when the venv is
rebuilt.

A new target belongs into one of the tables below. A benchmark prints a table, then one last line of JSON.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from controlplane.cluster import free_port
from controlplane.toolbox import Toolbox
from scripts.docs_site import pages
from tests.scripts.test_pythons import interpreter
from tests.support.paths import ROOT
from tests.support.patience import PATIENCE_S

MAKEFILE = (ROOT / "Makefile").read_text()
AT_ONCE = 3
LIMIT_S = 240


@dataclass(frozen=True, slots=True)
class Toy:
    """A benchmark at toy size, and some of the figures that its last line must have."""

    args: str
    figures: set[str]


PURE = {
    "bench-backfill": Toy(
        "--seeds 1 --nodes 4 --jobs 60", {"ratio_large_p99_to_off", "ratio_utilisation_to_off"}
    ),
    "bench-decide": Toy(
        "--sizes 20 --decisions 100 --queues 20 --waiting 20",
        {"median_us", "p99_us", "engine_per_s", "ratio_queues", "held_back_ms"},
    ),
    "bench-models": Toy("--tasks 40 --seeds 1", {"swaps_ratio", "makespan_ratio", "max_wait_s"}),
    "bench-takeover": Toy("--nodes 3 --rounds 1 --before src", {"cpu_s", "grown_mb", "ratio"}),
}
REAL = {
    "bench-agent": Toy("--seconds 1 --agents 2", {"cpu_percent", "memory_mb", "writes_per_minute"}),
    "bench-bind": Toy(
        "--nodes 2 --pods 10 --queues 3 --rounds 1 --who kube-scheduler,lease,claims,plain,queues"
        " --before src",
        {"ratio_lease", "ratio_plain", "ratio_lease_before", "ratio_queues"},
    ),
    "bench-client": Toy("--tasks 20 --rounds 1 --peers dramatiq", {"ratio_dramatiq", "client_per_s"}),
    "bench-gang": Toy("--nodes 2 --sizes 4 --at-once 1 --rounds 1", {"ratio_gang_4", "seconds_4"}),
    "bench-kube-parse": Toy("--pods 20 --rounds 1", {"seconds", "official_seconds", "speedup"}),
    "bench-kube-write": Toy("--pods 20 --rounds 1 --in-flight 4", {"creates_per_s", "binds_per_s"}),
    "bench-operator": Toy("--nodes 2 --workloads 4", {"scheduled_p99_s", "failover_s", "decided_anew"}),
    "bench-scale": Toy(
        "--workers 4 --queued 60,80 --shapes 20 --per-process 2 --seconds 0.5",
        {"dispatch_per_s", "post_p99_ms", "term_s", "server_mb", "store_mb", "completion_ms_2000"},
    ),
    "bench-store": Toy("--rounds 1 --calls 20 --posts 20 --libraries ours,valkey-py", {"valkey-py"}),
    "bench-turns": Toy("--rounds 1 --trips 3 --posts 50", {"ratio_p99", "ratio_cpu"}),
    "bench-tasks": Toy("--rounds 1 --seconds 0.1 --trips 3 --peers taskiq", {"ratio_taskiq", "p99_ms"}),
    "bench-vram": Toy("--simulate 1xH200:141GiB --seconds 0.2", {"agrees", "storm_held", "ok"}),
    "bench-webhook": Toy("--seconds 0.5 --per-second 20 --claims 10", {"p99_ms", "max_per_s", "failed"}),
    "bench-watchers": Toy("--clients 3 --seconds 0.2 --tasks 3", {"kib_per_client", "lag_ms_p99"}),
    "load": Toy("--seconds 2 --per-second 20", {"requests", "p99_ms", "server_errors"}),
}
HERE = {
    "accept",
    "api-docs",
    "build",
    "chart",
    "charts",
    "clean",
    "client-docs",
    "crds",
    "docs",
    "docs-serve",
    "fmt",
    "help",
    "lock",
    "manifests",
    "monitoring",
    "policies",
    "sbom",
    "test-fast",
    "tools",
}
ELSEWHERE = {
    "run": "tests/test_readme.py runs its command",
    "demo": "tests/scenarios/operator/test_demo.py runs its command",
    "cluster": "tests/controlplane/test_up.py runs its command",
    "install": "tests/scenarios/kube/test_releases.py runs it",
    "uninstall": "tests/scenarios/kube/test_releases.py runs it",
    "deploy": "tests/scenarios/operator/test_deploy.py runs its script",
    "undeploy": "tests/scenarios/operator/test_deploy.py runs its script",
    "docker": "tests/scripts/test_image.py runs its script",
    "docker-agent": "tests/scripts/test_image.py runs its script",
    "docker-build": "tests/scripts/test_image.py runs its script",
    "docker-push": "tests/scripts/test_image.py runs its script",
    "docker-webhook": "tests/scripts/test_image.py runs its script",
    "check": "`make test` runs what it runs",
    "lint": "`make test` runs what it runs",
    "release": "tests/scripts/test_release.py makes one",
    "recordings": "tests/scripts/test_recordings.py runs its command for `make run`",
    "screens": "tests/scripts/test_screens.py runs its command",
    "test": "runs this test; inside itself it would remove the coverage that it gathers",
    "test-pythons": "tests/scripts/test_pythons.py tests its script; it runs this test on each Python",
}


def make(*words: str, cwd: Path = ROOT, venv: str = sys.prefix) -> str:
    """Return what `make` prints. The virtual environment that runs this test is never rebuilt by it."""
    return bare_make(f"VENV={venv}", f"--old-file={venv}/ready", *words, cwd=cwd)


def bare_make(*words: str, cwd: Path = ROOT) -> str:
    """Return what `make` prints, without what an outer make, pytest or coverage has set."""
    outer = ("MAKE", "MFLAGS", "ARGS", "PYTHON=", "COVERAGE_", "PYTEST_")
    env = {name: value for name, value in os.environ.items() if not f"{name}=".startswith(outer)}
    command = ["make", *words]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def phony() -> set[str]:
    lines = re.findall(r"^\.PHONY: ([a-z].*)$", MAKEFILE, re.MULTILINE)
    return {name for line in lines for name in line.split()}


def test_every_target_is_run_somewhere() -> None:
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", MAKEFILE, re.MULTILINE))
    assert targets == phony()
    assert targets == PURE.keys() | REAL.keys() | HERE | ELSEWHERE.keys()


def test_help_lists_every_target() -> None:
    assert set(re.findall(r"^  make (\S+) +\S", make("help"), re.MULTILINE)) == phony()


@pytest.mark.parametrize("source", pages.sources())
def test_targets_named_in_a_document_exist(source: str) -> None:
    named = set(re.findall(r"`(?:sudo )?make ([a-z][a-z0-9-]*)", (ROOT / source).read_text()))
    assert not {name for name in named if not name.endswith("-")} - phony()  # `make bench-*` is many


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, toolbox: object) -> Iterator[dict[str, "Future[str]"]]:
    """Run the real benchmarks that this session has selected, some at once: they mostly wait."""
    selected = [
        str(item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == "test_real_benchmark_at_toy_size"
    ]
    make("tools")
    make(f"{sys.prefix}/bench/ready")  # before several targets need it at once
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(make, name, f"ARGS={REAL[name].args}") for name in selected}


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
    assert re.search(r"\b1 passed\b", make("test-fast", "ARGS=-n 0 tests/test_house.py -k locks"))


@pytest.mark.real
def test_accept_takes_arguments(toolbox: object, tmp_path: Path) -> None:
    printed = make("accept", f"ARGS=tests/test_house.py -k locks --ledger={tmp_path}")
    assert re.search(r"\b1 passed\b", printed)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy this tree, for targets that write into it. With its times: newer requirements would make `make`
    build our environments again."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / name)
    return tmp_path


def test_fmt_formats_files(copy: Path) -> None:
    ugly = copy / "benchmarks" / "table.py"
    ugly.write_text(ugly.read_text().replace(" = ", "="))
    make("fmt", cwd=copy)
    assert ugly.read_text() == (ROOT / "benchmarks" / "table.py").read_text()


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("crds", ["config/crd/*.yaml", "docs/reference/crds.md"]),
        ("policies", ["config/policy/*.yaml", "config/mutating-policy/*.yaml"]),
        ("api-docs", ["docs/reference/api.md"]),
        ("client-docs", ["docs/reference/python.md"]),
        ("monitoring", ["config/monitoring/prometheus_rule.yaml", "config/monitoring/dashboards/*.json"]),
        ("charts", ["charts/gpu-scheduler/values.schema.json"]),
    ],
)
def test_generated_files_match_the_tree(name: str, written: list[str], copy: Path) -> None:
    found = {each: {path.name: path.read_text() for path in ROOT.glob(each)} for each in written}
    assert all(found.values())
    for path in (path for each in written for path in copy.glob(each)):
        path.unlink()
    make(name, cwd=copy)
    for each in written:
        assert {path.name: path.read_text() for path in copy.glob(each)} == found[each]


ELSEWHERE_LOADED = re.compile(
    r"""<(?:script|img|iframe)[^>]*\ssrc="?(?:https?:)?//|<link[^>]*\shref="?(?:https?:)?//"""
)


@pytest.mark.real
def test_docs_have_every_page_and_load_nothing_from_elsewhere(copy: Path) -> None:
    make("docs", cwd=copy)
    site = copy / "site"
    written = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    expected = {pages.on_site(source).removesuffix("md") + "html" for source in pages.sources()}
    assert written >= expected
    assert not [name for name in written if ELSEWHERE_LOADED.search((site / name).read_text())]
    assert not re.search(r"url\(|@import", (site / "style.css").read_text())
    assert "nearest miss" in (site / "search" / "search_index.json").read_text()


@pytest.mark.real
def test_broken_link_fails_the_docs(copy: Path) -> None:
    with (copy / "docs" / "quickstart.md").open("a") as page:
        page.write("\n[gone](gone.md) and [no such heading](worker.md#gone)\n")
    with pytest.raises(AssertionError, match=r"(?s)gone\.md.*#gone"):
        make("docs", cwd=copy)


@pytest.mark.real
def test_docs_serve_shows_the_site(tmp_path: Path) -> None:
    port = free_port()
    command = ["make", "docs-serve", f"VENV={sys.prefix}", f"ARGS=-a 127.0.0.1:{port}"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # where the server builds the site
    with subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True) as server:
        try:
            assert "gpu-orchestrator" in shown(f"http://127.0.0.1:{port}/")
        finally:
            os.killpg(server.pid, signal.SIGTERM)


def shown(url: str) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(url) as answer:
                return str(answer.read().decode())
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_manifests_are_all_that_is_made_from_the_code() -> None:
    plan = make("--dry-run", "manifests")
    each = {make("--dry-run", name).strip() for name in ("crds", "policies", "monitoring", "charts")}
    assert set(plan.strip().splitlines()) == each


@pytest.mark.real
def test_chart_is_packed(toolbox: Toolbox, copy: Path) -> None:
    toolbox.get("helm")
    make("chart", cwd=copy)
    (packed,) = (copy / "dist").glob("*.tgz")
    with tarfile.open(packed) as archive:
        assert "gpu-scheduler/templates/scheduler/scheduler.yaml" in archive.getnames()


def test_build_and_sbom_are_the_same_from_any_folder(
    copy: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other") / "tree"
    shutil.copytree(copy, other)
    for tree in (copy, other):
        make("build", "sbom", cwd=tree)
    made = {each.name: each.read_bytes() for each in (copy / "dist").iterdir()}
    assert {"".join(Path(name).suffixes[-2:]) for name in made} >= {".cdx.json", ".tar.gz"}
    assert len(made) == 3
    assert {each.name: each.read_bytes() for each in (other / "dist").iterdir()} == made


def test_lock_covers_every_requirements_file(copy: Path) -> None:
    """A dry run only: resolving needs a package index."""
    would = make("--dry-run", "lock", cwd=copy)
    locked = set(re.findall(r"[a-z]+", would))
    files = {path.stem: path.read_text() for path in (ROOT / "requirements").glob("*.in")}
    included = re.compile(r"^-r (\w+)\.in$", re.MULTILINE)
    within = {name for file in locked & files.keys() for name in included.findall(files[file])}
    assert files.keys() <= locked | within


def test_clean_removes_what_make_created(copy: Path) -> None:
    made = [copy / name for name in (".venv", ".accept", ".mypy_cache", "site")]
    for folder in made:
        folder.mkdir()
    make("clean", cwd=copy, venv=".venv")
    assert not any(folder.exists() for folder in made)
    assert (copy / "Makefile").exists()


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """Make a fake environment of Python 3.11 that is newer than all it depends on."""
    made = tmp_path / "venv"
    interpreter(made / "bin", "3.11").rename(made / "bin" / "python")
    (made / "ready").touch()
    return made


def venv_plan(venv: Path, *variables: str) -> str:
    """Return what `make` would run to bring the environment up to date."""
    return bare_make("-n", f"{venv}/ready", f"VENV={venv}", *variables)


def test_other_python_rebuilds_the_venv(venv: Path, tmp_path: Path) -> None:
    other = interpreter(tmp_path, "3.12")
    plan = venv_plan(venv, f"PYTHON={other}")
    assert f"making {venv} with $({other} -V) in place of $({venv}/bin/python -V" in plan
    assert f"{other} -m venv --clear {venv}" in plan


def test_same_python_keeps_the_venv(venv: Path, tmp_path: Path) -> None:
    assert "venv --clear" not in venv_plan(venv, f"PYTHON={interpreter(tmp_path, '3.11')}")


def test_venv_is_kept_if_no_python_is_given(venv: Path) -> None:
    (venv / "bin" / "python").write_text("#!/bin/sh\necho 3.99\n")
    assert "venv --clear" not in venv_plan(venv)


def test_broken_venv_is_rebuilt(venv: Path, tmp_path: Path) -> None:
    (venv / "bin" / "python").unlink()
    other = interpreter(tmp_path, "3.12")
    assert f"{other} -m venv --clear {venv}" in venv_plan(venv, f"PYTHON={other}")


def test_missing_python_fails_even_if_the_venv_is_broken(venv: Path) -> None:
    (venv / "bin" / "python").unlink()
    with pytest.raises(AssertionError, match=r"3\.11 or newer is needed; python3\.98 is"):
        bare_make(f"{venv}/ready", f"VENV={venv}", "PYTHON=python3.98")


def test_python_behind_a_disabled_pyenv_shim_is_found(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = interpreter(tmp_path / "shims", "3.97")
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.with_name("python3").symlink_to(sys.executable)  # pyenv's own would look into the fake root, too
    real = interpreter(tmp_path / "pyenv/versions/3.97.1/bin", "3.97")
    monkeypatch.setenv("PATH", f"{shim.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert f"{real} -m venv --clear {venv}" in venv_plan(venv, "PYTHON=python3.97")
