"""Check an SBOM against the schema of CycloneDX, which only the environment of `make release` has."""

# ruff: noqa: T201, TID251 - a script, outside the pure packages

import sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator


def main(file: str) -> int:
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(Path(file).read_text())
    if wrong:
        print(f"{file} is no CycloneDX 1.6 document: {wrong}", file=sys.stderr)
        return 1
    print(f"{file}: a valid CycloneDX 1.6 document")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
