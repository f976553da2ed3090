"""Read a Dockerfile: the instructions that ours has, and no others.

An instruction that is not known is refused, so that this and what docker makes of the file cannot drift
apart.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


class Unreadable(Exception):
    """The text says which line, and what to do."""


@dataclass(frozen=True, slots=True)
class Copy:
    """From the folder of the project, or from another stage."""

    sources: tuple[str, ...]
    target: str
    stage: str = ""
    owner: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Run:
    command: str
    folder: str
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Settings:
    """What a container of the image gets: the configuration of the image."""

    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    folder: str = "/"
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    parent: str
    """Another stage, or the name of an image."""
    steps: tuple[Copy | Run, ...]
    settings: Settings


def read(text: str, env: Mapping[str, str], args: Mapping[str, str] | None = None) -> list[Stage]:
    """Return the stages. Every image outside of the file is taken to have the variables `env`."""
    reader = _Reader(dict(env), dict(args or {}))
    for word, rest in _instructions(text):
        reader.take(word, rest)
    if not reader.stages:
        raise Unreadable("the Dockerfile has no FROM")
    if any(isinstance(step, Run) for step in reader.stages[-1].steps):
        raise Unreadable("the last stage has a RUN: run it in a stage before, and COPY what it makes")
    return reader.stages


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", "").splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word.upper(), rest.strip()


class _Reader:
    def __init__(self, env: dict[str, str], args: dict[str, str]) -> None:
        self.stages: list[Stage] = []
        self._outside = Settings(env=env)
        self._args = args

    def take(self, word: str, rest: str) -> None:
        known = {
            "ARG": self._arg,
            "FROM": self._from,
            "COPY": self._copy,
            "RUN": self._run,
            "ENV": self._env,
            "LABEL": self._label,
            "WORKDIR": lambda rest: self._set(folder=rest),
            "USER": lambda rest: self._set(user=rest),
            "ENTRYPOINT": lambda rest: self._set(entrypoint=_words(rest)),
            "CMD": lambda rest: self._set(command=_words(rest)),
        }
        if word not in known:
            raise Unreadable(
                f"{word} {rest}: this instruction is not known; known: {', '.join(sorted(known))}"
            )
        if not self.stages and word not in ("ARG", "FROM"):
            raise Unreadable(f"{word} {rest}: it comes before the first FROM")
        known[word](rest)

    def _arg(self, rest: str) -> None:
        if self.stages:
            raise Unreadable(f"ARG {rest}: only before the first FROM")
        name, _, default = rest.partition("=")
        self._args.setdefault(name, default)

    def _from(self, rest: str) -> None:
        parent, _, name = _filled(rest, self._args).partition(" AS ")
        settings = self._outside
        for each in self.stages:
            if each.name == parent:
                settings = each.settings
        self.stages.append(Stage(name or "image", parent, (), settings))

    def _copy(self, rest: str) -> None:
        words, options = _options(rest)
        stage, owner = options.pop("from", ""), options.pop("chown", "0:0")
        if options or len(words) < 2:
            raise Unreadable(f"COPY {rest}: sources and a target, with --from and --chown, are known")
        if stage and stage not in [each.name for each in self.stages[:-1]]:
            raise Unreadable(f"COPY {rest}: there is no stage '{stage}' before this one")
        user, _, group = owner.partition(":")
        target = self._absolute(words[-1])
        self._add(Copy(tuple(words[:-1]), target, stage, (int(user), int(group or user))))

    def _absolute(self, path: str) -> str:
        """Return the target as a path from the root. A slash at its end, which means a folder, stays."""
        return path if path.startswith("/") else f"{self.stages[-1].settings.folder.rstrip('/')}/{path}"

    def _run(self, rest: str) -> None:
        settings = self.stages[-1].settings
        self._add(Run(rest, settings.folder, tuple(sorted(settings.env.items()))))

    def _env(self, rest: str) -> None:
        env = dict(self.stages[-1].settings.env)
        self._set(env=env | _pairs(rest, env))

    def _label(self, rest: str) -> None:
        self._set(labels={**self.stages[-1].settings.labels, **_pairs(rest, {})})

    def _add(self, step: Copy | Run) -> None:
        last = self.stages[-1]
        self.stages[-1] = replace(last, steps=(*last.steps, step))

    def _set(self, **fields: object) -> None:
        last = self.stages[-1]
        self.stages[-1] = replace(last, settings=replace(last.settings, **fields))  # type: ignore[arg-type]


def _filled(text: str, values: Mapping[str, str]) -> str:
    return VARIABLE.sub(lambda found: values.get(found[1] or found[2], ""), text)


def _options(rest: str) -> tuple[list[str], dict[str, str]]:
    words = rest.split()
    options = [each[2:].partition("=") for each in words if each.startswith("--")]
    return [each for each in words if not each.startswith("--")], {name: value for name, _, value in options}


def _pairs(rest: str, env: Mapping[str, str]) -> dict[str, str]:
    parted = [each.partition("=") for each in shlex.split(rest)]
    return {name: _filled(value, env) for name, _, value in parted}


def _words(rest: str) -> tuple[str, ...]:
    try:
        return tuple(json.loads(rest))
    except ValueError:
        raise Unreadable(f'{rest}: write it as a list: ["word", …]') from None
