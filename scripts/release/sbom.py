"""What the package depends on, as a CycloneDX 1.6 document. It is read from the hash-locked lists alone: no
network, no installed package, and for one commit always the same bytes.

    python -m scripts.release.sbom dist
"""

# ruff: noqa: T201, TID251 - a script, outside the pure packages

import json
import os
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scripts.release import checks, git

ROOT = Path(__file__).parents[2]
NAME = "gpu-orchestrator"
LOCKS = {
    "runtime": "",
    "manager": "manager",
    "celery": "celery",
    "models": "models",
    "kubernetes": "webhook, agent",
}
"""The lists of what runs, and the extras of the package that each is for; not those of tests."""
PIN = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?: ; (?P<marker>.*?))? \\$")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pinned:
    """One distribution at one version, with the checksums of all its files. `extras`: who wants it; an empty
    one is the package itself."""

    name: str
    version: str
    marker: str = ""
    hashes: tuple[str, ...] = ()
    extras: frozenset[str] = field(default_factory=frozenset)

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{re.sub(r'[-_.]+', '-', self.name).lower()}@{self.version}"


def main(folder: str) -> None:
    print(write(ROOT, Path(folder), int(os.environ.get("SOURCE_DATE_EPOCH") or git.committed_at(ROOT))))


def write(root: Path, folder: Path, moment: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{NAME}-{checks.version(root)}.cdx.json"
    file.write_text(json.dumps(document(root, moment), indent=1) + "\n")
    return file


def document(root: Path, moment: int) -> Json:
    """Return the document; `moment` is when the commit was made."""
    found = _together(root)
    ours = Pinned(NAME, checks.version(root))
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    body: Json = {
        "metadata": {
            "timestamp": datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z"),
            "component": {
                **_component(ours, "application"),
                "description": project["description"],
                "licenses": [{"license": {"id": project["license"]}}],
                "externalReferences": [{"type": "vcs", "url": project["urls"]["Repository"]}],
            },
        },
        "components": [_component(each, "library") for each in found],
        "dependencies": [{"ref": ours.purl, "dependsOn": [each.purl for each in found]}],
        # The lists say what is installed, not who asked for it.
        "compositions": [{"aggregate": "incomplete", "dependencies": [ours.purl]}],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body, sort_keys=True))
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": serial.urn, "version": 1, **body}


def pinned(lock: str) -> Iterator[Pinned]:
    """Yield what a hash-locked list pins."""
    for entry in re.split(r"\n(?=[\w])", lock):
        lines = [line for line in entry.splitlines() if not line.startswith("#")]
        if lines and (match := PIN.match(lines[0])):
            hashes = tuple(sorted(HASH.findall(entry)))
            yield Pinned(match["name"], match["version"], match["marker"] or "", hashes)
        elif any(line.strip() for line in lines):
            raise ValueError(f"this is no pin with hashes: {lines[0]}")


def _together(root: Path) -> Sequence[Pinned]:
    """Return each distribution of all lists once, and who wants it."""
    found: dict[str, Pinned] = {}
    for lock, extra in LOCKS.items():
        for each in pinned((root / f"requirements/{lock}.txt").read_text()):
            known = found.setdefault(each.purl, each)
            found[each.purl] = replace(known, extras=known.extras | {extra})
    return [found[purl] for purl in sorted(found)]


def _component(each: Pinned, kind: str) -> Json:
    made: Json = {"type": kind, "bom-ref": each.purl, "name": each.name, "version": each.version}
    made["purl"] = each.purl
    if each.hashes:
        made["scope"] = "required" if "" in each.extras else "optional"
        made["externalReferences"] = [_files(each)]
    if properties := _properties(each):
        made["properties"] = properties
    return made


def _files(each: Pinned) -> Json:
    """Return the checksums of the files that may be installed: one for each platform, and the source."""
    return {
        "type": "distribution",
        "url": each.purl,
        "comment": "any of its files; the checksums are those of requirements/*.txt",
        "hashes": [{"alg": "SHA-256", "content": checksum} for checksum in each.hashes],
    }


def _properties(each: Pinned) -> list[Mapping[str, str]]:
    said = {"marker": each.marker, "extras": "; ".join(sorted(each.extras - {""}))}
    if "" in each.extras:
        del said["extras"]
    return [{"name": f"{NAME}:{name}", "value": value} for name, value in said.items() if value]


if __name__ == "__main__":
    main(*sys.argv[1:])
