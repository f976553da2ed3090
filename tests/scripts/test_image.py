"""The image without a daemon: what is read of the Dockerfile, what is performed again, and that nothing but
its input decides on its digest. tests/scenarios/kube/test_real_release.py runs the image.
"""

import json
import os
import re
import shlex
import stat
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from scripts.image import base, dockerfile, layer, oci, packages, plan
from scripts.image.build import Builder, default_cache
from scripts.image.dockerfile import Copy, Run, Stage, Unreadable
from scripts.image.layer import Tree
from scripts.image.packages import NoPackages
from tests.support import image
from tests.support.paths import ROOT
from tests.support.scale import Scale

DOCKERFILE = (ROOT / "Dockerfile").read_text()
SMALL = """\
FROM python:3 AS made
ENV PYTHONPYCACHEPREFIX=/out PYTHONDONTWRITEBYTECODE=1
COPY module.py /in/
RUN python -m compileall -q --invalidation-mode unchecked-hash /in \\
 && echo done > /out/word
FROM python:3
COPY --from=made --chown=65532:65532 /out /out
USER 65532:65532
ENTRYPOINT ["python"]
"""


def stages() -> list[Stage]:
    return dockerfile.read(DOCKERFILE, base.ENV)


def test_image_is_what_the_dockerfile_says() -> None:
    """Read a second time, by eye: docker takes the same lines."""
    last, settings = DOCKERFILE.rpartition("\nFROM ")[2], stages()[-1].settings
    assert re.findall(r"^USER (.+)$", last, re.MULTILINE) == [settings.user] == ["65532:65532"]
    assert [json.loads(each) for each in re.findall(r"^ENTRYPOINT (.+)$", last, re.MULTILINE)] == [
        [*settings.entrypoint]
    ]
    assert [json.loads(each) for each in re.findall(r"^CMD (.+)$", last, re.MULTILINE)] == [
        [*settings.command]
    ]
    (line,) = re.findall(r"^ENV (.+)$", last, re.MULTILINE)
    for name, value in (each.split("=", 1) for each in shlex.split(line)):
        assert settings.env[name] == value.replace("$PATH", base.ENV["PATH"])
    copied = [each for each in stages()[-1].steps if isinstance(each, Copy)]
    assert len(copied) == last.count("\nCOPY ")
    assert [each.owner for each in copied if each.target == "/data"] == [(65532, 65532)]


def test_everything_is_locked() -> None:
    """No command of the Dockerfile installs a package that no lock names."""
    commands = [each.command for stage in stages() for each in stage.steps if isinstance(each, Run)]
    installs = [
        part for each in commands for part in each.split("&&") if "pip" in part and " install " in part
    ]
    assert len(installs) == 3
    for each in installs:
        assert "--require-hashes" in each or ("--no-index" in each and "--no-deps" in each)


REFUSED = [
    pytest.param("FROM a\nADD x /x\n", "ADD x /x: this instruction is not known", id="unknown instruction"),
    pytest.param("FROM a\nRUN true\n", "the last stage has a RUN", id="command at the end"),
    pytest.param("COPY a b\n", "before the first FROM", id="without a base"),
    pytest.param("", "no FROM", id="empty"),
    pytest.param("FROM a\nENTRYPOINT python\n", "write it as a list", id="words for a shell"),
    pytest.param("FROM a\nCOPY --link a b\n", "--from and --chown, are known", id="unknown option"),
    pytest.param("FROM a AS b\nFROM a\nCOPY --from=c a b\n", "no stage 'c' before", id="unknown stage"),
    pytest.param("FROM a\nARG x\n", "only before the first FROM", id="late argument"),
]


@pytest.mark.parametrize(("text", "why"), REFUSED)
def test_what_docker_would_do_otherwise_is_refused(text: str, why: str) -> None:
    with pytest.raises(Unreadable, match=re.escape(why)):
        dockerfile.read(text, base.ENV)


def test_stage_that_begins_with_another_has_its_settings() -> None:
    one_and_two = "ARG B=x\nFROM ${B} AS one\nENV A=1 PATH=/a:$PATH\nWORKDIR /w\nFROM one AS two\n"
    text = f"{one_and_two}RUN \\\n  # why\n  make\nFROM x\n"
    one, two, last = dockerfile.read(text, {"PATH": "/bin"})
    assert (one.parent, two.parent) == ("x", "one")
    assert two.steps == (Run("make", "/w", (("A", "1"), ("PATH", "/a:/bin"))),)
    assert last.settings.env == {"PATH": "/bin"}


def test_only_steps_whose_input_changed_are_performed_again(tmp_path: Path) -> None:
    before = keys(tmp_path)
    (tmp_path / "src/gpu_orchestrator/new.py").write_text("x = 1\n")
    (tmp_path / "src/__pycache__").mkdir()
    (tmp_path / "src/__pycache__/old.pyc").write_bytes(b"")
    source = keys(tmp_path)
    assert source["tools"] == before["tools"]
    assert source["wheel"][0] == before["wheel"][0]
    assert source["wheel"][1] != before["wheel"][1]
    *dependencies, ours = source["install"]
    assert (dependencies, ours != before["install"][-1]) == (before["install"][:-1], True)

    (tmp_path / "src/gpu_orchestrator/new.py").unlink()
    assert keys(tmp_path) == before, "compiled files are no input"
    (tmp_path / "requirements/image.txt").write_text("another\n")
    lock = keys(tmp_path)
    assert (lock["wheel"], lock["install"][1] != before["install"][1]) == (before["wheel"], True)
    assert not set(map(str, keys(tmp_path, "another base").values())) & set(map(str, lock.values()))


def keys(folder: Path, base_key: str = "base") -> dict[str, list[str]]:
    for name in (
        "requirements/build.txt",
        "requirements/image.txt",
        "pyproject.toml",
        "hatch_build.py",
        "README.md",
        "LICENSE",
    ):
        if not (folder / name).exists():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(name)
    (folder / "src/gpu_orchestrator").mkdir(parents=True, exist_ok=True)
    found = plan.batches(stages(), folder, base_key)
    return {name: [each.key for each in found[name]] for name in ("tools", "wheel", "install")}


def test_layer_depends_on_its_content_alone(tmp_path: Path) -> None:
    for name, mask, time_s in (("one", 0o022, 1_000_000_000), ("two", 0o077, 1_700_000_000)):
        before = os.umask(mask)
        folder = tmp_path / name
        (folder / "b/c").mkdir(parents=True)
        (folder / "b/c/run").write_text("#!/bin/sh\n")
        (folder / "b/c/run").chmod(0o700 if name == "two" else 0o755)
        (folder / "a").write_text("text")
        (folder / "link").symlink_to("b/c")
        os.umask(before)
        os.utime(folder / "a", (time_s, time_s))
    (tmp_path / "out").mkdir()
    written = [
        layer.write(Tree(tmp_path / each, "/opt/x", (7, 8)), tmp_path / "out") for each in ("one", "two")
    ]
    assert written[0].digest == written[1].digest
    with tarfile.open(written[0].path) as tar:
        entries = {each.name: each for each in tar}
    assert list(entries) == ["opt", "opt/x", "opt/x/a", "opt/x/b", "opt/x/b/c", "opt/x/b/c/run", "opt/x/link"]
    assert (entries["opt"].uid, entries["opt/x/a"].uid, entries["opt/x/a"].gid) == (0, 7, 8)
    assert entries["opt/x/link"].linkname == "b/c"
    assert (entries["opt/x/b/c/run"].mode, entries["opt/x/a"].mode) == (0o755, 0o644)
    (tmp_path / "two/a").write_text("other")
    assert layer.write(Tree(tmp_path / "two", "/opt/x", (7, 8)), tmp_path / "out").digest != written[0].digest


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ("gpus", "docker.io/library/gpus:latest"),
        ("gpus:1", "docker.io/library/gpus:1"),
        ("me/gpus:1", "docker.io/me/gpus:1"),
        ("localhost/gpus", "localhost/gpus:latest"),
        ("registry.example.com:5000/gpus", "registry.example.com:5000/gpus:latest"),
    ],
)
def test_name_is_that_of_the_kubelet(given: str, full: str) -> None:
    assert oci.full_name(given) == full


DEPENDS = """\
python3.11
  PreDepends: a
 |Depends: b
  Depends: c
  Depends: <virtual>
a
  Depends: debconf
b
  Depends: d
"""


def test_packages_are_those_that_python_needs() -> None:
    graph = packages._edges(DEPENDS)
    assert set(packages.reachable(graph, ["python3.11"])) == {"python3.11", "a", "b", "d"}


def small(folder: Path, name: str) -> tuple[str, Path, Builder]:
    """Build a small image in a cache of its own, which has the bases of the user's; return its digest."""
    cache, context = folder / name / "cache", folder / name / "context"
    cache.mkdir(parents=True)
    context.mkdir()
    (context / "Dockerfile").write_text(SMALL)
    (context / "module.py").write_text(
        "words = {'a', 'b', 'c', 'd'}\n\n\ndef f(x):\n    return x in {'e', 'f', 'g'}\n"
    )
    for each in (*default_cache().glob("base-*"), *default_cache().glob("layer-*[0-9a-f]")):
        (cache / each.name).symlink_to(each)
    builder = Builder(cache, context)
    archive = folder / name / "image.tar"
    try:
        digest = builder.build(archive, ["small:1", "small:2"])
    except NoPackages as error:
        pytest.skip(f"no image can be built on this machine: {error}")
    return digest, archive, builder


@pytest.mark.real
def test_same_input_makes_the_same_image(
    tmp_path: Path, scale: Scale, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, archive, builder = small(tmp_path, "first")
    assert builder.build(tmp_path / "again.tar", ["small:1", "small:2"]) == first
    assert len(builder.performed) == 1, "the second time it was taken from the cache"
    folders = os.environ["PATH"].split(":")
    monkeypatch.setenv(
        "PATH", ":".join(each for each in folders if not each.endswith("/sbin"))
    )  # as of users
    second, *_ = small(tmp_path, "second")
    assert second == first
    made = read(archive)
    assert made["config"]["config"] == {
        "User": "65532:65532",
        "Env": [f"{name}={value}" for name, value in base.ENV.items()],
        "Entrypoint": ["python"],
        "WorkingDir": "/",
    }
    assert set(made["names"]) == {"docker.io/library/small:1", "docker.io/library/small:2"}
    files = made["layers"][1]
    assert {each.name for each in files if each.isreg()} == {
        "out/in/module.cpython-3" + python_minor() + ".pyc",
        "out/word",
    }
    assert {each.uid for each in files if each.name.startswith("out")} == {65532}

    if scale(test=False, accept=True):
        whole = [image_from_nothing(tmp_path / each) for each in ("one", "two")]
        assert whole[0] == whole[1]


def python_minor() -> str:
    return packages.python_version().partition(".")[2]


def image_from_nothing(folder: Path) -> str:
    folder.mkdir()
    return Builder(folder / "cache").build(folder / "image.tar", ["gpu-orchestrator:1"])


def read(archive: Path) -> dict[str, Any]:
    """Return what an OCI layout says, after comparing each blob with its digest and size."""
    with tarfile.open(archive) as tar:

        def blob(descriptor: dict[str, Any]) -> bytes:
            content = tar.extractfile(f"blobs/{descriptor['digest'].replace(':', '/')}")
            assert content is not None
            data = content.read()
            assert len(data) == descriptor["size"]
            return data

        index = json.loads(tar.extractfile("index.json").read())  # type: ignore[union-attr]
        manifest = json.loads(blob(index["manifests"][0]))
        layers = []
        for each in manifest["layers"]:
            content = tar.extractfile(f"blobs/{each['digest'].replace(':', '/')}")
            with tarfile.open(fileobj=content) as inner:
                layers.append(inner.getmembers())
        config = json.loads(blob(manifest["config"]))
    assert config["rootfs"]["diff_ids"] == [each["digest"] for each in manifest["layers"]]
    names = [each["annotations"]["io.containerd.image.name"] for each in index["manifests"]]
    return {"config": config, "layers": layers, "names": names}


@pytest.mark.real
@pytest.mark.timeout(600)
def test_image_has_no_shell_no_pip_and_nothing_with_the_rights_of_root(tmp_path: Path) -> None:
    image.build(tmp_path / "image.tar", "gpu-orchestrator:1")
    made = read(tmp_path / "image.tar")
    files = {each.name: each for found in made["layers"] for each in found}
    names = {path.rpartition("/")[2] for path, each in files.items() if not each.isdir()}
    assert not names & {"sh", "bash", "dash", "apt", "apt-get", "dpkg", "pip", "pip3", "su", "mount"}
    assert "gpu-orchestrator" in names
    assert not [each.name for each in files.values() if each.mode & (stat.S_ISUID | stat.S_ISGID)]
    assert not [each.name for each in files.values() if each.mode & stat.S_IWOTH and each.isreg()]
    assert "opt/gpu-orchestrator/compiled/tools" not in files, "what the build tools compile names times"


STANDS_IN = '#!/bin/sh\n[ "$1" = info ] || echo "${{0##*/}} $*" >> {log}\n'


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_docker_or_podman_builds_and_pushes_where_it_answers(engine: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    put(tmp_path / "bin", **{engine: STANDS_IN.format(log=log)})
    run(tmp_path, "build")
    run(tmp_path, "build", "ghcr.io/me/gpu-scheduler:v0.1.0")
    run(tmp_path, "push", "ghcr.io/me/gpu-scheduler:v0.1.0")
    assert log.read_text().splitlines() == [
        f"{engine} build --tag=gpu-orchestrator:latest --tag=gpu-orchestrator:0.1.0 .",
        f"{engine} build --tag=ghcr.io/me/gpu-scheduler:v0.1.0 .",
        f"{engine} push ghcr.io/me/gpu-scheduler:v0.1.0",
    ]


def test_without_them_it_says_what_to_do(tmp_path: Path) -> None:
    silent = "#!/bin/sh\nexit 1\n"
    put(
        tmp_path / "bin",
        docker=silent,
        podman=silent,
        python3='#!/bin/sh\n[ "$1" = -c ] || echo "python $*"\n',
    )
    printed = run(tmp_path, "build", "a.example/gpus:1")
    assert "python -m scripts.image --name=a.example/gpus:1 dist/image.tar" in printed
    assert "ctr -n k8s.io images import dist/image.tar" in printed
    assert "'gpus' names no registry" in run(tmp_path, "push", "gpus", ends=1)
    assert "push needs one name" in run(tmp_path, "push", ends=1)
    assert "build or push" in run(tmp_path, "pull", ends=1)


def test_old_python_is_told(tmp_path: Path) -> None:
    silent = "#!/bin/sh\nexit 1\n"
    old = '#!/bin/sh\n[ "$1" = -V ] && echo Python 3.9.2 || exit 1\n'
    put(tmp_path / "bin", docker=silent, podman=silent, python3=old)
    assert "3.11 or newer is needed, and python3 is Python 3.9.2" in run(tmp_path, "build", ends=1)


def put(folder: Path, **programs: str) -> None:
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def run(folder: Path, *words: str, ends: int = 0) -> str:
    path = f"{folder / 'bin'}:/usr/bin:/bin"
    done = subprocess.run(
        [ROOT / "scripts/image.sh", *words], env={"PATH": path}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == ends, done.stderr
    return done.stdout + done.stderr
