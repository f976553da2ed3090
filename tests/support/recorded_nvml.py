"""NVIDIA's library NVML as a recording: every call is answered as a driver answered it, or as a file
describes.

It takes the place of the library below `pynvml`; the adapter above is the real one. `scripts/record_gpus.py`
writes such files on a machine with GPUs. What a file says:

    calls   function -> arguments -> answer, for functions without a device
    gpus    device ("0", or "0/1" for an instance of it) -> function -> arguments -> answer
    every   the same for all GPUs that have no answer of their own

Arguments are joined by commas, without the device; "*" stands for all others. An answer `{"error": 15}` is
raised. A function without an answer is not supported.
"""

import json
import types
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pynvml  # type: ignore[import-untyped]
import pytest

from tests.support.paths import ROOT

FOLDER = ROOT / "tests" / "data" / "gpus"
UUID = "nvmlDeviceGetUUID"


class Handle(str):
    """A device of the recording."""


class RecordedNvml:
    """`is_loaded` is False while there is no driver. `events` are XIDs still to be received: device and
    number."""

    def __init__(self, recording: dict[str, Any]) -> None:
        self.calls: dict[str, Any] = recording.get("calls", {})
        self.gpus: dict[str, Any] = recording["gpus"]
        self._every: dict[str, Any] = recording.get("every", {})
        self.is_loaded, self._is_open = True, False
        self.opened = 0
        self.listened: set[str] = set()
        self.events: list[tuple[str, int]] = []

    def answer(self, name: str, *arguments: Any) -> Any:
        if name == "nvmlInit":
            return self._open()
        if not (self._is_open and self.is_loaded):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        own = getattr(self, f"_{name}", None)
        return own(*arguments) if own else self._recorded(name, *arguments)

    def _open(self) -> None:
        if not self.is_loaded:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        _value(self.calls.get("nvmlInit", {}).get(""))
        self._is_open = True
        self.opened += 1

    def _recorded(self, name: str, *arguments: Any) -> Any:
        device, rest = "", list(arguments)
        if rest and isinstance(rest[0], Handle):
            device = rest.pop(0)
        tables = [self.gpus[device], self._every] if device else [self.calls]
        answers: dict[str, Any] = next((table[name] for table in tables if name in table), {})
        key = ",".join(str(each) for each in rest).replace(" ", "")
        return _value(answers.get(key, answers.get("*", {"error": pynvml.NVML_ERROR_NOT_SUPPORTED})))

    def _nvmlShutdown(self) -> None:  # noqa: N802 - named as the library names it, as are those below
        self._is_open = False

    def _nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return sum("/" not in device for device in self.gpus)

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:  # noqa: N802
        _value(self.gpus[str(index)].get("nvmlDeviceGetHandleByIndex", {}).get(""))
        return Handle(index)

    def _nvmlDeviceGetHandleByUUID(self, uuid: str) -> Handle:  # noqa: N802
        for device, answers in self.gpus.items():
            if answers[UUID][""] == uuid:
                _value(answers.get("nvmlDeviceGetHandleByUUID", {}).get(""))
                return Handle(device)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: Handle, place: int) -> Handle:  # noqa: N802
        if f"{gpu}/{place}" not in self.gpus:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return Handle(f"{gpu}/{place}")

    def _nvmlDeviceRegisterEvents(self, gpu: Handle, kinds: int, events: Any) -> None:  # noqa: N802
        _value(self.gpus[gpu].get("nvmlDeviceGetHandleByUUID", {}).get(""))
        self.listened.add(gpu)

    def _nvmlEventSetWait_v2(self, events: Any, timeout_ms: int) -> Any:  # noqa: N802
        if not self.events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        device, xid = self.events.pop(0)
        return SimpleNamespace(device=Handle(device), eventData=xid)


def load(name: str) -> RecordedNvml:
    """Return the recording of a machine from `tests/data/gpus`."""
    return RecordedNvml(json.loads((FOLDER / f"{name}.json").read_text()))


def install(library: RecordedNvml, monkeypatch: pytest.MonkeyPatch) -> RecordedNvml:
    """Let `pynvml` call the recording instead of a driver."""
    for name, found in vars(pynvml).items():
        if name.startswith("nvml") and isinstance(found, types.FunctionType):
            monkeypatch.setattr(pynvml, name, _call(library, name))
    return library


def _call(library: RecordedNvml, name: str) -> Any:
    return lambda *arguments, **named: library.answer(name, *arguments, *named.values())


def _value(answer: Any) -> Any:
    """Return an answer as the library would, with structures as objects; raise what is an error."""
    if isinstance(answer, dict):
        if "error" in answer:
            raise pynvml.NVMLError(answer["error"])
        return SimpleNamespace(**{name: _value(each) for name, each in answer.items()})
    if isinstance(answer, list):
        return [_value(each) for each in answer]
    return deepcopy(answer)
