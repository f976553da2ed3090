"""`embedding`: turns texts into vectors with a model of transformers: `{"texts": ["…", "…"]}`.

The mean of the last layer over the tokens of each text, of length 1 unless `normalize` is false. A task type
where torch and transformers are installed.
"""

import importlib
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gpu_orchestrator.apps.worker.handlers import torch_device
from gpu_orchestrator.apps.worker.task import BadParameters, Model, Task

AT_ONCE = 32
"""Texts in one batch, unless the model's option `batch` says otherwise."""


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    texts: Annotated[list[str], Meta(min_length=1, max_length=10_000)]
    normalize: bool = True


class Embedding:
    def load(self, model: Model) -> None:
        self.tokenizer, self.model = torch_device.load(model, "AutoModel")
        self.at_once = max(int(model.options.get("batch", AT_ONCE)), 1)

    def run(self, task: Task) -> dict[str, Any]:
        asked = task.parameters(Parameters)
        found: list[list[float]] = []
        tokens = 0
        for first in range(0, len(asked.texts), self.at_once):
            task.check()
            vectors, count = self._embedded(asked.texts[first : first + self.at_once], asked)
            found += vectors
            tokens += count
        return {"embeddings": found, "dimensions": len(found[0]), "tokens": tokens}

    def _embedded(self, texts: list[str], asked: Parameters) -> tuple[list[list[float]], int]:
        torch = importlib.import_module("torch")
        inputs = self.tokenizer(texts, return_tensors="pt", padding=True).to(self.model.device)
        longest, most = int(inputs["attention_mask"].sum(1).max()), torch_device.most_tokens(self.model)
        if most and longest > most:
            raise BadParameters(f"a text has {longest} tokens; this model takes {most}: cut the text")
        with torch.inference_mode():
            layers = self.model(**inputs).last_hidden_state.float()
        mask = inputs["attention_mask"].unsqueeze(-1).float()
        vectors = (layers * mask).sum(1) / mask.sum(1).clamp(min=1)
        if asked.normalize:
            vectors = torch.nn.functional.normalize(vectors, dim=1)
        return vectors.tolist(), int(inputs["attention_mask"].sum())
