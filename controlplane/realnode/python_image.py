"""The Python that runs here as an image: interpreter, standard library and the shared libraries they need.

Everything is at the path that it has on this machine, so a virtual environment mounted at its own path works.
"""

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from controlplane.realnode.images import Content

# Large, and no program of ours imports them.
LEFT_OUT = {
    "test",
    "tests",
    "idlelib",
    "ensurepip",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "turtledemo",
}


LOAD = """\
import ctypes, sys
for name in sys.stdin.read().split("\\n"):
    try:
        ctypes.CDLL(name)
    except OSError:
        pass
print(open("/proc/self/maps").read())
"""


def content() -> Content:
    """Return the files of the image."""
    interpreter = Path(sys.executable).resolve()
    library = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    library |= {Path(base) for base in sys.path if base.endswith("lib-dynload")}
    files = {interpreter, *(file for folder in library for file in _walk(folder))}
    modules = [*files, *_walk(Path(sysconfig.get_path("platlib")))]
    libraries = _libraries([file for file in modules if _is_shared(file)])
    links = {**_top_folders(), **_to_interpreter(), **_other_names(libraries)}
    return Content(
        {_inside(file): file for file in sorted(files | libraries | _loaders())},
        {_inside(path): target for path, target in links.items()},
        folders=["tmp"],
    )


def _inside(path: Path) -> str:
    return str(path).lstrip("/")


def _walk(folder: Path) -> Iterator[Path]:
    for base, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        yield from (Path(base, name) for name in names if not name.endswith(".a"))


def _is_shared(path: Path) -> bool:
    return ".so" in path.suffixes


def _libraries(objects: Iterable[Path]) -> set[Path]:
    """Load these modules in a process of their own, and return the libraries outside of the virtual
    environment that it has mapped then. (The program ldd would start a process for each.)"""
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        input="\n".join(map(str, objects)),
        capture_output=True,
        text=True,
        check=True,
    )
    mapped = {Path(word) for word in re.findall(r"\s(/\S+)$", done.stdout, re.MULTILINE)}
    return {path for path in mapped if _is_shared(path) and not path.is_relative_to(sys.prefix)}


def _loaders() -> set[Path]:
    """Return the program that loads shared libraries: the kernel looks for it at this very path."""
    found = (path for folder in ("/lib", "/lib64") for path in Path(folder).glob("ld-linux*"))
    return {path.parent.resolve() / path.name for path in found}


def _top_folders() -> dict[Path, str]:
    """Return /lib and the like, where they are links into /usr."""
    tops = (Path("/", name) for name in ("lib", "lib64", "lib32"))
    return {top: str(top.readlink()) for top in tops if top.is_symlink()}


def _to_interpreter() -> dict[Path, str]:
    """Return the links from the virtual environment's `python` to the interpreter, except its own."""
    links, path = {}, Path(sys.executable)
    while path.is_symlink():
        target = path.readlink()
        if not path.is_relative_to(sys.prefix):
            links[path] = str(target)
        path = path.parent / target
    return links


def _other_names(libraries: set[Path]) -> dict[Path, str]:
    """Return the links beside these libraries that lead to them, as libz.so.1 does to libz.so.1.2.13."""
    beside = (path for folder in {library.parent for library in libraries} for path in folder.iterdir())
    return {
        path: str(path.readlink()) for path in beside if path.is_symlink() and path.resolve() in libraries
    }
