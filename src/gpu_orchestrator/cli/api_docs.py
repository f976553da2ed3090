"""Write the reference of the HTTP API from its routes: `make api-docs`."""

import sys
from pathlib import Path
from typing import cast

from gpu_orchestrator.apps.manager.http import app, openapi, reference
from gpu_orchestrator.apps.manager.manager import Manager


def markdown() -> str:
    """Return the reference. It needs no server: the routes are enough."""
    document = openapi.document(app.application(cast(Manager, None)))
    return reference.markdown(document, reference.NOTE)


def main(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(markdown())
    print(path)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("name a file: python -m gpu_orchestrator.cli.api_docs docs/reference/api.md")
    main(Path(sys.argv[1]))
