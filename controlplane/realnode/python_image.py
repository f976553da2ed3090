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


def content() -> Content:
    """Return the files of the image."""
    interpreter = Path(sys.executable).resolve()
    library = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    library |= {Path(base) for base in sys.path if base.endswith("lib-dynload")}
    files = {interpreter, *(file for folder in library for file in _walk(folder))}
    objects = [interpreter, *(file for file in files if _is_shared(file)), *_shared_of_environment()]
    files |= set(_libraries(objects))
    return Content({str(file).lstrip("/"): file for file in sorted(files)}, folders=["tmp"])


def _walk(folder: Path) -> Iterator[Path]:
    for base, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        yield from (Path(base, name) for name in names if not name.endswith(".a"))


def _is_shared(path: Path) -> bool:
    return ".so" in path.suffixes


def _shared_of_environment() -> list[Path]:
    """Return the compiled modules of the virtual environment: their libraries belong into the image, too."""
    return [path for path in _walk(Path(sysconfig.get_path("platlib"))) if _is_shared(path)]


def _libraries(objects: Iterable[Path]) -> Iterator[Path]:
    done = subprocess.run(["ldd", *objects], capture_output=True, text=True, check=False)
    environment = Path(sys.prefix)
    for word in set(re.findall(r"(/\S+) \(0x", done.stdout)):
        path = Path(word)
        if path.exists() and not path.is_relative_to(environment):
            yield path
