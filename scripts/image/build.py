"""Build the image: perform the steps whose inputs changed, then make layers of the base and of what is copied
last.
"""

# ruff: noqa: TID251 - a script, outside the pure packages

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from scripts.image import base, dockerfile, layer, oci, perform, plan
from scripts.image.dockerfile import Copy, Run, Stage
from scripts.image.layer import Layer, Tree
from scripts.image.plan import Batch

ROOT = Path(__file__).parents[2]
KEPT = 8
"""Results of steps that are kept: those of three checkouts, at most 3 GB."""


def default_cache() -> Path:
    """Return a folder beside that of the toolbox."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "gpu-orchestrator" / "image"


@dataclass
class Builder:
    """`performed` tells which steps were not found in the cache."""

    cache: Path
    context: Path = ROOT
    performed: list[str] = field(default_factory=list)

    def build(self, target: Path, names: Sequence[str]) -> str:
        """Write the image to this file, and return its digest."""
        self.cache.mkdir(parents=True, exist_ok=True)
        with _alone(self.cache):
            stages = dockerfile.read((self.context / "Dockerfile").read_text(), base.ENV)
            begin = base.get(self.cache, for_building=True)
            batches = plan.batches(stages, self.context, begin.key)
            layers = self._layers(stages[-1], batches, begin.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            digest = oci.write(target, names, layers, stages[-1].settings)
            self._forget_old()
        return digest

    def _layers(self, last: Stage, batches: Mapping[str, list[Batch]], begin: Path) -> list[Layer]:
        below = base.get(self.cache, for_building=False)
        made = [self._layer(below.key, Tree(below.folder, ""))]
        for step in last.steps:
            if not isinstance(step, Copy):  # which dockerfile.read refuses
                raise TypeError(step)
            key = batches[step.stage][-1].key
            folder = self._result(batches[step.stage], begin, batches)
            (source,) = step.sources
            tree = Tree(folder / source.strip("/"), step.target, step.owner)
            made.append(self._layer(f"{key}-{step.target.strip('/').replace('/', '-')}", tree))
        return made

    def _layer(self, key: str, tree: Tree) -> Layer:
        """Return the layer of this tree, whose content the key stands for."""
        folder = self.cache / f"layer-{key}"
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=self.cache, prefix=".layer-") as made:
                layer.write(tree, Path(made))
                Path(made).rename(folder)
                Path(made).mkdir()  # which the context manager removes
        (path,) = folder.iterdir()
        os.utime(folder)
        return Layer(path, path.name, path.stat().st_size)

    def _result(self, chain: Sequence[Batch], begin: Path, batches: Mapping[str, list[Batch]]) -> Path:
        """Return the folder with what the last of these batches made, after performing what is not kept."""
        if not chain:
            return begin
        *before, last = chain
        folder = self.cache / f"step-{last.key}"
        if not folder.exists():
            earlier = self._result(before, begin, batches)
            sources = {
                each.stage: self._result(batches[each.stage], begin, batches) for each in _copies(last)
            }
            unfinished = Path(tempfile.mkdtemp(dir=self.cache, prefix=".step-"))
            try:
                subprocess.run(["cp", "-a", "--reflink=auto", f"{earlier}/.", unfinished], check=True)
                for step in last.steps:
                    self._perform(step, unfinished, sources)
                unfinished.rename(folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
        os.utime(folder)
        return folder

    def _perform(self, step: Copy | Run, root: Path, sources: Mapping[str, Path]) -> None:
        if isinstance(step, Run):
            self.performed.append(step.command)
            perform.run(step, root, self.cache / "pip")
        else:
            perform.copy(step, sources.get(step.stage, self.context), root)

    def _forget_old(self) -> None:
        """Remove what a killed build left, and all but the results and layers that were used last."""
        for left in self.cache.glob(".*-*"):
            shutil.rmtree(left, ignore_errors=True)
        for kind in ("step", "layer", "base"):
            found = sorted(self.cache.glob(f"{kind}-*"), key=lambda each: each.stat().st_mtime, reverse=True)
            for each in found[KEPT:]:
                shutil.rmtree(each, ignore_errors=True)


def _copies(batch: Batch) -> Iterator[Copy]:
    yield from (each for each in batch.steps if isinstance(each, Copy) and each.stage)


@contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """Hold the cache's lock, which the kernel releases when the process ends in any way."""
    with (cache / "lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
