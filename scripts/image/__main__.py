"""Build the image without a daemon: `python -m scripts.image --name registry/gpus:1 dist/image.tar`."""

# ruff: noqa: TID251, T201 - a script, outside the pure packages

import argparse
import re
import sys
import time
from pathlib import Path

from scripts.image.build import ROOT, Builder, default_cache
from scripts.image.dockerfile import Unreadable
from scripts.image.packages import NoPackages
from scripts.image.perform import StepFailed


def version() -> str:
    """Return the version of the package, which need not be installed."""
    text = (ROOT / "src/gpu_orchestrator/__init__.py").read_text()
    return re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.image", description=__doc__)
    parser.add_argument("--name", action="append", help="a name that the image gets; may be given again")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="where results of steps are kept")
    parser.add_argument("file", type=Path, help="the file to write")
    options = parser.parse_args()
    names = options.name or [f"gpu-orchestrator:{version()}"]
    started = time.monotonic()
    builder = Builder(options.cache)
    try:
        digest = builder.build(options.file, names)
    except (NoPackages, StepFailed, Unreadable, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    size_mb = options.file.stat().st_size / 1e6
    took = f"{len(builder.performed)} steps in {time.monotonic() - started:.0f} s"
    print(f"{options.file}: {', '.join(names)}, {size_mb:.0f} MB, {took}\n{digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
