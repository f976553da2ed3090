"""Classes that tests register on a worker as handlers of models: they hold simulated memory, and sleep."""

import ctypes
import os
import time
from pathlib import Path
from typing import Any

from gpu_orchestrator.adapters.gpus import memory
from gpu_orchestrator.apps.worker.task import BadParameters, Model, Task


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


class Talk:
    """Answers as `text_generation` and `embedding` do, without weights: `echo` of the last message in reverse
    order of its words, one at a time. A text in its options decides what goes wrong."""

    def load(self, model: Model) -> None:
        if gate := model.options.get("gate"):
            while not Path(gate).exists():
                time.sleep(0.01)
        self.options = model.options

    def run(self, task: Task) -> dict[str, Any]:
        asked = task.parameters(dict[str, Any])
        if "texts" in asked:
            vectors = [[float(len(each)), 0.5] for each in asked["texts"]]
            return {"embeddings": vectors, "dimensions": 2, "tokens": len(vectors)}
        prompt = asked.get("prompt") or asked["messages"][-1]["content"]
        if len(prompt) > 100_000:
            raise BadParameters(f"the prompt has {len(prompt)} tokens; this model takes 100000")
        if prompt == "fail":
            raise RuntimeError("as asked")
        words = prompt.split()
        if prompt == "only steps":
            task.send({"step": 1})
            return {"text": "steps only"}
        shown = [f"{each} " for each in reversed(words)][: asked.get("max_tokens", 1000)]
        for each in shown:
            if asked.get("stream"):
                task.send({"text": each})
            if each == "forever ":
                self._last_for_ever(task)
        return {
            "text": "".join(shown),
            "finish_reason": "stop" if len(shown) == len(words) else "length",
            "prompt_tokens": len(words),
            "completion_tokens": len(shown),
        }

    def _last_for_ever(self, task: Task) -> None:
        Path(self.options["journal"]).write_text("begun")
        try:
            task.sleep(3600)
        finally:
            Path(self.options["journal"]).write_text("ended")
