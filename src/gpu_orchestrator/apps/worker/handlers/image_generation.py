"""`image_generation`: makes images of a text with a pipeline of diffusers: `{"prompt": "a red fox"}`.

The answer has each image as base64. A task type where torch and diffusers are installed.
"""

import base64
import importlib
import io
from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gpu_orchestrator.apps.worker.handlers import torch_device
from gpu_orchestrator.apps.worker.task import BadParameters, Model, Task

MOST_AT_ONCE = 16
MOST_PIXELS = 4 << 20
"""Of one image."""
Side = Annotated[int, Meta(ge=0, le=4096)]


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where `width`, `height`, `steps` or `guidance` is 0 or not given, the pipeline's own default counts."""

    prompt: Annotated[str, Meta(max_length=100_000)] = ""
    prompts: Annotated[list[str], Meta(max_length=MOST_AT_ONCE)] = []
    negative_prompt: Annotated[str, Meta(max_length=100_000)] = ""
    images: Annotated[int, Meta(ge=1, le=MOST_AT_ONCE)] = 1
    width: Side = 0
    height: Side = 0
    steps: Annotated[int, Meta(ge=0, le=1000)] = 0
    guidance: Annotated[float, Meta(ge=0, le=100)] | None = None
    seed: Annotated[int, Meta(ge=0, le=(1 << 62))] | None = None
    format: Literal["png", "jpeg", "webp"] = "png"


class ImageGeneration:
    def load(self, model: Model) -> None:
        self.pipeline = torch_device.load_pipeline(model)
        self.takes = torch_device.arguments_of(self.pipeline)

    def run(self, task: Task) -> dict[str, Any]:
        asked = task.parameters(Parameters)
        prompts = self._prompts(asked)
        given = self._given(asked, len(prompts))
        began = monotonic()
        found = self._generate(task, {"prompt": prompts, **given})
        seconds = round(monotonic() - began, 4)
        return {"images": list(_written(found, asked.format)), "seconds": seconds}

    def _prompts(self, asked: Parameters) -> list[str]:
        if bool(asked.prompt) == bool(asked.prompts):
            raise BadParameters("give one of prompt and prompts")
        prompts = asked.prompts or [asked.prompt]
        if len(prompts) * asked.images > MOST_AT_ONCE:
            count = len(prompts) * asked.images
            raise BadParameters(f"{count} images are asked for; at most {MOST_AT_ONCE} are made at once")
        return prompts

    def _given(self, asked: Parameters, prompts: int) -> dict[str, Any]:
        """Return the arguments of the pipeline; refuse what this one does not know."""
        if bool(asked.width) != bool(asked.height):
            raise BadParameters("width and height belong together; give both, or neither")
        if asked.width * asked.height > MOST_PIXELS:
            raise BadParameters(
                f"{asked.width} x {asked.height} is more than {MOST_PIXELS} pixels; give a smaller size"
            )
        if asked.width % 8 or asked.height % 8:
            raise BadParameters(f"{asked.width} x {asked.height}: give multiples of 8")
        wanted: Mapping[str, tuple[str, Any]] = {
            "negative_prompt": ("negative_prompt", [asked.negative_prompt] * prompts),
            "images": ("num_images_per_prompt", asked.images),
            "width": ("width", asked.width),
            "height": ("height", asked.height),
            "steps": ("num_inference_steps", asked.steps),
            "guidance": ("guidance_scale", asked.guidance),
            "seed": ("generator", asked.seed),
        }
        usual = Parameters()
        chosen = {name: each for name, each in wanted.items() if getattr(asked, name) != getattr(usual, name)}
        if unknown := [name for name, (argument, _) in chosen.items() if argument not in self.takes]:
            kind = type(self.pipeline).__name__
            raise BadParameters(f"{', '.join(unknown)}: this model ({kind}) does not take it; leave it out")
        given = dict(chosen.values())
        if asked.seed is not None:
            torch = importlib.import_module("torch")
            given["generator"] = torch.Generator("cpu").manual_seed(asked.seed)
        return given

    def _generate(self, task: Task, given: dict[str, Any]) -> Any:
        def after_step(_pipeline: Any, step: int, _moment: Any, kept: dict[str, Any]) -> dict[str, Any]:
            task.check()
            task.progress(f"step {step + 1}")
            return kept

        if "callback_on_step_end" in self.takes:
            given = {**given, "callback_on_step_end": after_step}
        task.check()
        return self.pipeline(**given).images


def _written(images: Any, kind: str) -> Iterator[dict[str, Any]]:
    for each in images:
        written = io.BytesIO()
        (each.convert("RGB") if kind == "jpeg" else each).save(written, kind)
        data = base64.b64encode(written.getvalue()).decode()
        yield {"data": data, "format": kind, "width": each.width, "height": each.height}
