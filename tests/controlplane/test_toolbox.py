"""The toolbox on a real Go toolchain and a module small enough to build in a second."""

import io
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane import golang
from controlplane.errors import ToolboxError
from controlplane.toolbox import Family, Tool, Toolbox, kubernetes_versions

pytestmark = pytest.mark.real

HELLO = 'package main\n\nfunc main() { println("hello") }\n'
RUN = """
import sys
from pathlib import Path
from tests.controlplane.test_toolbox import toy
print(toy(Path(sys.argv[1])).get("hello")["hello"])
"""


def toy(folder: Path) -> Toolbox:
    return Toolbox(
        cache=folder / "cache",
        modules=folder / "modules",
        families={"toy": Family({"hello": Tool("example.com/toy", 1)})},
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    module = tmp_path / "modules" / "toy"
    module.mkdir(parents=True)
    (module / "go.mod").write_text("module example.com/toy\n\ngo 1.24\n")
    (module / "go.sum").touch()
    (module / "main.go").write_text(HELLO)
    return tmp_path


def go_that(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a fake `go` before the real one on PATH; `$GO` inside the script is the real one, if there is
    one."""
    wrapper = folder / "bin" / "go"
    wrapper.parent.mkdir()
    wrapper.write_text(f"#!/bin/sh\nGO={shutil.which('go') or 'no-go-here'}\n{script}\n")
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")


def in_another_process(folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", RUN, str(folder)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def output_of(binary: Path) -> str:
    return subprocess.run([binary], capture_output=True, text=True, check=True).stderr.strip()


def test_missing_binary_is_built_once_and_found_later(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert toy(folder).find("hello") is None
    built = toy(folder).get("hello")["hello"]
    assert output_of(built) == "hello"
    monkeypatch.setenv("PATH", "/nowhere")  # Go is gone now, and not needed
    assert toy(folder).get("hello") == {"hello": built}


def test_changed_pins_cause_another_build(folder: Path) -> None:
    before = toy(folder).get("hello")["hello"]
    (folder / "modules/toy/go.mod").write_text("module example.com/toy\n\ngo 1.24.1\n")
    assert toy(folder).get("hello")["hello"] != before


def test_assets_folder_comes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = folder / "assets" / "hello"
    theirs.parent.mkdir()
    theirs.write_text("#!/bin/sh\necho theirs >&2\n")
    theirs.chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(theirs.parent))
    assert output_of(toy(folder).get("hello")["hello"]) == "theirs"


def test_older_kubernetes_has_binaries_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of KUBEBUILDER_ASSETS are of one version, whichever that is."""
    theirs = tmp_path / "kubectl"
    theirs.touch(mode=0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    *older, newest = kubernetes_versions()
    assert older
    assert Toolbox.of(newest).find("kubectl") == theirs
    for version in older:
        assert Toolbox.of(version).find("kubectl") != theirs
        assert f"gitVersion=v{version}." in Toolbox.of(version).families[f"kubernetes-{version}"].ldflags


def test_unknown_kubernetes_is_an_error_with_the_known_ones() -> None:
    with pytest.raises(ToolboxError, match=r"no Kubernetes 1\.2 is pinned here; there are 1\.34, "):
        Toolbox.of("1.2")


def test_unknown_tool_is_an_error_with_the_known_ones(folder: Path) -> None:
    with pytest.raises(ToolboxError, match="unknown tool 'helo'; known: hello"):
        toy(folder).get("helo")


def test_failed_build_leaves_nothing_behind(folder: Path) -> None:
    (folder / "modules/toy/main.go").write_text("package main\n\nfunc main() { nonsense }\n")
    with pytest.raises(ToolboxError, match=r"could not build hello: .*undefined: nonsense"):
        toy(folder).get("hello")
    assert [path for path in (folder / "cache").rglob("*") if path.is_file()] == [folder / "cache" / "lock"]


def test_next_run_repairs_an_interrupted_build(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_that(
        folder,
        monkeypatch,
        '[ "$1" = build ] && echo half > "$(dirname "$8")/hello" && echo up && exec sleep 60\nexec $GO "$@"',
    )
    first = in_another_process(folder)
    half_built = _wait_for(folder / "cache", ".building-*/hello")
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert half_built.exists()

    shutil.rmtree(folder / "bin")
    assert output_of(toy(folder).get("hello")["hello"]) == "hello"
    assert not half_built.parent.exists()


def test_two_runs_at_once_build_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_that(
        folder, monkeypatch, f'[ "$1" = build ] && echo build >> {folder}/builds && sleep 5\nexec $GO "$@"'
    )
    runs = [in_another_process(folder) for _ in range(2)]
    outputs = [run.communicate(timeout=200) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    assert (folder / "builds").read_text() == "build\n"
    assert sum("waiting for it" in stderr for _, stderr in outputs) == 1


def test_error_without_network_says_what_still_works(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = folder / "modules/toy"
    (module / "go.mod").write_text("module example.com/toy\n\ngo 1.24\n\nrequire example.com/other v1.0.0\n")
    (module / "go.sum").write_text(
        "example.com/other v1.0.0 h1:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n"
        "example.com/other v1.0.0/go.mod h1:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n"
    )
    (module / "main.go").write_text(
        'package main\n\nimport "example.com/other"\n\nfunc main() { other.Do() }\n'
    )
    monkeypatch.setenv("GOPROXY", "http://127.0.0.1:9")
    with pytest.raises(ToolboxError, match=r"could not get hello: .*out of reach.*make check test-fast"):
        toy(folder).get("hello")


def test_wheel_is_used_if_go_is_too_old(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_that(folder, monkeypatch, "echo go1.20.1")
    assert output_of(toy(folder).get("hello")["hello"]) == "hello"
    assert [path.name for path in (folder / "cache").glob("go-*")]


def test_each_message_has_a_line_of_its_own_on_a_terminal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A progress line is overwritten by the next one; every other message ends its line."""
    go_that(folder, monkeypatch, "echo go1.20.1")
    main, terminal = pty.openpty()
    with os.fdopen(main, "rb", buffering=0) as screen:
        command = [sys.executable, "-c", RUN, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=terminal) as process:
            os.close(terminal)
            seen = b"".join(iter(lambda: read(screen), b"")).decode()
        assert process.returncode == 0, seen
    lines = [line.rpartition("\r\x1b[K")[2] for line in seen.split("\r\n") if line]
    assert [line.count("toolbox: ") for line in lines] == [1] * len(lines)
    assert any(line.startswith("toolbox: getting the Go toolchain as a wheel") for line in lines)
    assert any(line.startswith("toolbox: building hello") for line in lines)


def read(screen: io.RawIOBase) -> bytes:
    try:
        return screen.read(4096) or b""
    except OSError:  # the last writer has closed the terminal
        return b""


@pytest.mark.parametrize(
    ("newer", "older"), [("go1.26.8", "1.26"), ("1.26.0", "go1.25.9"), ("go1.27rc1", "1.26.9")]
)
def test_versions_compare_by_number(newer: str, older: str) -> None:
    assert golang.version_tuple(newer) > golang.version_tuple(older)


def _wait_for(folder: Path, pattern: str) -> Path:
    for _ in range(600):
        for found in folder.rglob(pattern):
            return found
        signal.sigtimedwait([], 0.05)
    raise AssertionError(f"no {pattern} appeared in {folder}")
