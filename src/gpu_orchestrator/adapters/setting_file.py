"""Settings of a process on Kubernetes: a YAML file, overridden by flags. Unknown keys are refused."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from gpu_orchestrator.adapters.settings import BadSettings

S = TypeVar("S", bound=msgspec.Struct)


def load(kind: type[S], path: str, flags: dict[str, Any]) -> S:
    """Read the settings. A flag that was not given is None."""
    values = _read(Path(path)) if path else {}
    values |= {_camel(name): value for name, value in flags.items() if value is not None}
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(_camel(name) for name in kind.__struct_fields__)
        raise BadSettings(f"settings of {path or 'the command line'}: {error}; known: {known}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text())
    except OSError as error:
        raise BadSettings(f"cannot read {path}: {error.strerror}; fix --config") from error
    except yaml.YAMLError as error:
        raise BadSettings(f"{path} is not valid YAML: {error}") from error
    if values is not None and not isinstance(values, dict):
        raise BadSettings(f"{path} holds a {type(values).__name__}; write keys and values")
    return dict(values or {})


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
