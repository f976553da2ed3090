"""CHANGELOG.md: a section for each release, newest first, as keepachangelog.com has it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

HEADING = re.compile(r"^## (?P<version>\d+\.\d+\.\d+) - (?P<day>\S+)$")
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
UNRELEASED = "unreleased"


class BadChangelog(Exception):
    """The text says what is wrong with CHANGELOG.md, and what to write."""


@dataclass(frozen=True, slots=True)
class Section:
    """What changed in a version; `day` is None until it is released."""

    version: str
    day: date | None
    text: str


def sections(text: str) -> list[Section]:
    """Return the sections, newest first; raise `BadChangelog` if they cannot be read."""
    _, *parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    found = [_section(part) for part in parts]
    numbers = [_numbers(each.version) for each in found]
    if numbers != sorted(set(numbers), reverse=True):
        raise BadChangelog("the versions of CHANGELOG.md are not in order: newest first, each once")
    if any(each.day is None for each in found[1:]):
        raise BadChangelog("only the newest version of CHANGELOG.md may be unreleased")
    return found


def problems(text: str, version: str, *, today: date | None = None) -> Iterator[str]:
    """Yield what is wrong with the text. With `today`, also what keeps the version from being released."""
    try:
        newest = next(iter(sections(text)), None)
    except BadChangelog as error:
        yield str(error)
        return
    if newest is None or newest.version != version:
        found = newest.version if newest else "none"
        yield f"the newest section of CHANGELOG.md is {found}; write `## {version} - {UNRELEASED}` above it"
        return
    if not re.search(r"^- ", newest.text, re.MULTILINE):
        yield f"CHANGELOG.md says nothing of {version}; list what users will notice"
    if today and newest.day != today:
        yield f"CHANGELOG.md gives {version} the day {newest.day or UNRELEASED}; write {today}"


def _section(part: str) -> Section:
    heading, _, text = part.partition("\n")
    match = HEADING.match(heading)
    if not match:
        raise BadChangelog(
            f"CHANGELOG.md has `{heading}`; write `## 1.2.3 - 2026-01-31`, or `- {UNRELEASED}`"
        )
    for kind in re.findall(r"^### (.*)$", text, re.MULTILINE):
        if kind not in KINDS:
            raise BadChangelog(f"CHANGELOG.md has `### {kind}`; known are {', '.join(KINDS)}")
    return Section(match["version"], _day(match["day"]), text.strip())


def _day(text: str) -> date | None:
    if text == UNRELEASED:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise BadChangelog(f"CHANGELOG.md has the day {text}; write 2026-01-31, or {UNRELEASED}") from error


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
