"""Classes that tests register on a worker as handlers of models: they hold simulated memory, and sleep."""

import ctypes
import os
import time
from pathlib import Path
from typing import Any

from gpu_orchestrator.adapters.gpus import memory
from gpu_orchestrator.apps.worker.task import Model, Task


class Sized:
    """Allocates `mib` of its options on each device; a load takes `load_s` and adds a line to `journal`."""

    def load(self, model: Model) -> None:
        print(f"{model.name} prints in its load")  # noqa: T201 - what is tested
        if before := model.options.get("before"):
            with Path(before).open("a") as lines:
                lines.write(f"{model.name}\n")
        if mib := int(model.options.get("mib", 0)):
            devices = memory.visible()
            self.blocks = [devices.allocate(at, mib) for at in range(devices.count())]
        if journal := model.options.get("journal"):
            with Path(journal).open("a") as lines:
                lines.write(f"{model.name}\n")
        time.sleep(model.options.get("load_s", 0.0))
        self.name, self.path, self.tasks = model.name, model.path, 0

    def run(self, task: Task) -> dict[str, Any]:
        asked = task.parameters(dict[str, Any])
        if gate := asked.get("gate"):
            while not Path(gate).exists():
                task.sleep(0.01)
        if asked.get("fails"):
            raise RuntimeError("as asked")
        if asked.get("crashes"):
            ctypes.string_at(0)
        task.sleep(asked.get("seconds", 0.0))
        self.tasks += 1
        return {"model": self.name, "task": self.tasks, "pid": os.getpid(), "path": self.path}


class Broken:
    """Fails in its load, as its model's name says."""

    def load(self, model: Model) -> None:
        match model.name:
            case "slow":
                time.sleep(3600)
            case "crash":
                ctypes.string_at(0)
            case "exit":
                raise SystemExit(3)
            case _:
                raise ValueError(f"weights of {model.name} are not what they should be")

    def run(self, task: Task) -> None: ...


class Loadless:
    def run(self, task: Task) -> None: ...
