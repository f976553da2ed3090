"""Give every step a key made of all that it depends on: the step before, its text, and the files it copies.

A result is kept under its key, so a step runs again only when something that it reads has changed.
"""

# ruff: noqa: TID251 - a script, outside the pure packages

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.image.dockerfile import Copy, Run, Stage

VERSION = "1"
"""Counted up when steps are performed in another way: earlier results are then made again."""
IGNORED = ("__pycache__",)


@dataclass(frozen=True, slots=True)
class Batch:
    """Steps up to a RUN: one result, under one key."""

    key: str
    steps: tuple[Copy | Run, ...]


def batches(stages: Sequence[Stage], context: Path, base_key: str) -> Mapping[str, list[Batch]]:
    """Return the batches of each stage by its name, those of the stages that it begins with included."""
    made: dict[str, list[Batch]] = {}
    for stage in stages:
        before = list(made.get(stage.parent, ()))
        key = before[-1].key if before else base_key
        for steps in _batched(stage.steps):
            key = _digest([VERSION, key, *(_text(each, context, made) for each in steps)])
            before.append(Batch(key, steps))
        made[stage.name] = before
    return made


def _batched(steps: Sequence[Copy | Run]) -> Iterator[tuple[Copy | Run, ...]]:
    batch: list[Copy | Run] = []
    for step in steps:
        batch.append(step)
        if isinstance(step, Run):
            yield tuple(batch)
            batch = []
    if batch:
        yield tuple(batch)


def _text(step: Copy | Run, context: Path, made: Mapping[str, list[Batch]]) -> str:
    if isinstance(step, Run):
        return repr(step)
    if step.stage:
        return f"{step!r} {made[step.stage][-1].key}"
    return f"{step!r} {_digest(line for each in step.sources for line in _contents(context / each))}"


def _contents(path: Path) -> Iterator[str]:
    """Yield the name, the kind and the content of each file that is copied."""
    if not path.exists():
        raise FileNotFoundError(f"COPY {path.name}: there is no {path}")
    for each in [path, *files_below(path)]:
        name = each.relative_to(path.parent).as_posix()
        if each.is_file():
            content = hashlib.sha256(each.read_bytes()).hexdigest()
            yield f"{name} {os.access(each, os.X_OK)} {content}"


def files_below(folder: Path) -> Iterator[Path]:
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(
            each for each in folders if each not in IGNORED and not each.endswith(".egg-info")
        )
        yield from (Path(base, name) for name in sorted(names))


def _digest(lines: Iterator[str] | Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
