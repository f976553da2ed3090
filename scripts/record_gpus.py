"""Record what NVIDIA's driver answers on this machine, for tests that replay it: `python
scripts/record_gpus.py DIR`.

Writes `nvml.json` (every call that our adapter makes, as `tests/support/recorded_nvml.py` reads it), and what
`nvidia-smi` says at the same time: `nvidia-smi.xml`, `topo.txt`. Serial numbers are left out.
With a number behind DIR, a CUDA program holds that many MiB meanwhile.
"""

# ruff: noqa: T201, TID251 - a script, outside the pure packages

import ctypes
import json
import re
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped]

from gpu_orchestrator.adapters.gpus.nvml import Nvml

BY_INDEX, BY_UUID = "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByUUID"
INSTANCE = "nvmlDeviceGetMigDeviceHandleByIndex"
UNRECORDED = {"nvmlInit", "nvmlShutdown", "nvmlDeviceGetCount", BY_UUID, INSTANCE}
SECRET = re.compile(r"(<(serial|board_serial|chassis_serial_number)>)[^<]*(<)")
HOLD = [sys.executable, "-m", "gpu_orchestrator.adapters.gpus.hold"]


class Recorder:
    """Wraps the functions of `pynvml`; `times` has the seconds that each took, all calls added."""

    def __init__(self) -> None:
        self.calls: dict[str, Any] = {}
        self.gpus: dict[str, Any] = {}
        self.times: dict[str, list[float]] = {}
        self._names: dict[object, str] = {}
        self._depth = 0

    def install(self) -> None:
        for name, found in list(vars(pynvml).items()):
            if name.startswith("nvml") and isinstance(found, types.FunctionType):
                setattr(pynvml, name, self._wrapped(name, found))

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self._depth:
                return function(*arguments, **named)
            self._depth += 1
            began = time.perf_counter()
            try:
                answer = function(*arguments, **named)
            except pynvml.NVMLError as error:
                self._keep(name, [*arguments, *named.values()], {"error": error.value})
                raise
            finally:
                self._depth -= 1
                self.times.setdefault(name, []).append(time.perf_counter() - began)
            self._name(name, arguments, answer)
            self._keep(name, [*arguments, *named.values()], _plain(answer))
            return answer

        return call

    def _name(self, function: str, arguments: tuple[Any, ...], answer: Any) -> None:
        if function == BY_INDEX:
            self._names[_address(answer)] = str(arguments[0])
        elif function == INSTANCE:
            self._names[_address(answer)] = f"{self._names[_address(arguments[0])]}/{arguments[1]}"

    def _keep(self, function: str, arguments: list[Any], answer: Any) -> None:
        if function in UNRECORDED or function.startswith(("nvmlEvent", "nvmlDeviceRegister")):
            return
        table = self.calls
        if arguments and (device := self._names.get(_address(arguments[0]))) is not None:
            table, arguments = self.gpus.setdefault(device, {}), arguments[1:]
        if function == BY_INDEX:
            return
        key = ",".join(self._names.get(_address(each), str(each)) for each in arguments).replace(" ", "")
        table.setdefault(function, {})[key] = answer


def _address(value: Any) -> object:
    """Return what identifies a device: two handles of one device are different objects."""
    if isinstance(value, ctypes._Pointer):
        return ctypes.cast(value, ctypes.c_void_p).value
    return (type(value), value) if isinstance(value, str) else None


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, ctypes.Union):
        return {"uiVal": value.uiVal}
    if isinstance(value, ctypes.Structure):
        return {name: _plain(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, ctypes.Array | list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, int | float | str | None):
        return value
    return {name: _plain(each) for name, each in vars(value).items()}


def record() -> Recorder:
    """Do all that a worker and the node agent do with the driver, once."""
    recorder = Recorder()
    recorder.install()
    gpus = Nvml()
    gpus.devices()
    gpus.links()
    gpus.readings()
    gpus.close()
    return recorder


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    holder = None
    if len(sys.argv) > 2:
        holder = subprocess.Popen([*HOLD, sys.argv[2]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if holder.stdout is None or holder.stdout.readline() != b"held\n":
            sys.exit("no program could hold memory on the first device")
    recorder = record()
    for name, words in {"nvidia-smi.xml": ["-q", "-x"], "topo.txt": ["topo", "-m"]}.items():
        said = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, check=False).stdout
        (folder / name).write_text(SECRET.sub(r"\1\3", said))
    if holder is not None:
        holder.communicate()
    recording = {"calls": recorder.calls, "gpus": recorder.gpus}
    (folder / "nvml.json").write_text(json.dumps(recording, indent=1) + "\n")
    slowest = sorted(recorder.times.items(), key=lambda each: -max(each[1]))[:12]
    for name, took in slowest:
        print(f"{name}: {len(took)} calls, slowest {max(took) * 1000:.2f} ms")


if __name__ == "__main__":
    main()
