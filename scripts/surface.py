"""Print what this tree promises to the outside, without its words, as JSON: compare it before a release.

    python scripts/surface.py > new.json    # in each of two trees, with the Python of its .venv; then diff

Kinds, HTTP API, metrics with their labels, log events with their fields, settings with their defaults, names
of labels and annotations, and the strings of the store's scripts, among them all keys. A difference is a
change that users can see, or that running servers and stored data must survive.
"""

# ruff: noqa: T201, TID251 - a script, outside the pure packages

import ast
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import yaml

from gpu_orchestrator.adapters import settings as manager
from gpu_orchestrator.api import names
from gpu_orchestrator.apps.manager.http import app, openapi
from gpu_orchestrator.apps.scheduler import settings as scheduler
from gpu_orchestrator.apps.webhook import settings as webhook
from gpu_orchestrator.apps.worker import settings as worker

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src/gpu_orchestrator"
WORDS = {"description", "summary", "title"}
METRICS = {"counter", "gauge", "histogram", "summary"}
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
LABELS = {"labelnames", "labels", "namespace", "buckets"}


def main() -> None:
    print(json.dumps(surface(), indent=1, sort_keys=True, default=str))


def surface() -> dict[str, Any]:
    site = SimpleNamespace(settings=manager.Settings())
    return {
        "kinds": {path.name: _bare(yaml.safe_load(path.read_text())) for path in _crds()},
        "http": _bare(openapi.document(app.application(site))),  # type: ignore[arg-type]  # reads settings only
        "metrics": sorted(_metrics()),
        "log events": sorted(_log_events()),
        "settings": {module.__name__: sorted(_fields(module.Settings)) for module in _settings()},
        "names": sorted(
            {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
        ),
        "store": sorted(_lua_strings()),
    }


def _crds() -> list[Path]:
    return sorted((ROOT / "config/crd").glob("gpu*.yaml"))


def _settings() -> tuple[Any, ...]:
    return manager, scheduler, webhook, worker


def _bare(value: Any) -> Any:
    """Return the document without the texts that only explain."""
    if isinstance(value, dict):
        return {
            name: _bare(each) for name, each in value.items() if not (name in WORDS and isinstance(each, str))
        }
    return [_bare(each) for each in value] if isinstance(value, list) else value


def _calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Yield calls with a text as first argument: what is called, that text, the call."""
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=func, args=[ast.Constant(value=str(text)), *_]):
                    yield ast.unparse(func), text, node


def _metrics() -> Iterator[str]:
    for called, name, call in _calls():
        if called.rpartition(".")[2].lower() in METRICS:
            more = [ast.unparse(each) for each in call.args[2:3]]
            more += [f"{each.arg}={ast.unparse(each.value)}" for each in call.keywords if each.arg in LABELS]
            yield " ".join([called.rpartition(".")[2].lower(), name, *more])


def _log_events() -> Iterator[str]:
    for called, sentence, call in _calls():
        logger, _, level = called.rpartition(".")
        if logger.endswith("log") and level in LEVELS:
            yield f"{sentence} {sorted(each.arg or '**' for each in call.keywords)}"


def _fields(kind: type) -> Iterator[str]:
    fields: Any = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else msgspec.structs.fields(kind)
    for each in fields:
        has_default = each.default not in (dataclasses.MISSING, msgspec.NODEFAULT)
        yield f"{each.name}={each.default!r}" if has_default else each.name


def _lua_strings() -> set[str]:
    code = "\n".join(re.sub(r"--[^\n]*", "", path.read_text()) for path in SRC.rglob("*.lua"))
    return {first or second for first, second in re.findall(r"'([^'\n]*)'|\"([^\"\n]*)\"", code)}


if __name__ == "__main__":
    main()
