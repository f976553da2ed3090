"""What the handlers on torch, transformers and diffusers share: local weights, and where they go. For runners
alone.

The libraries are imported when a model is loaded, by name: this package does not depend on them.
"""

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

from gpu_orchestrator.apps.worker.task import LoadFailed, Model

DTYPES = ("auto", "bfloat16", "float16", "float32")
NEEDED = ("torch", "transformers")


def load(model: Model, kind: str) -> tuple[Any, Any]:
    """Return the tokenizer and the model, of this class of transformers, from the folder that the registry
    names. Nothing is fetched, and no code that lies beside the weights is run."""
    transformers, options = importlib.import_module("transformers"), _options(model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.path, **options)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    held = getattr(transformers, kind).from_pretrained(model.path, dtype=_dtype(model), **options, **_map())
    if not hasattr(held, "hf_device_map"):
        held = held.to(device())
    return tokenizer, held.eval()


def load_pipeline(model: Model) -> Any:
    """Return the pipeline of diffusers whose folder the registry names, on the device. The class is the one
    that `model_index.json` there names, if diffusers has it."""
    options = _options(model)
    _check_no_code(model)
    diffusers = importlib.import_module("diffusers")
    spread = {"device_map": "balanced"} if _map() else {}
    dtype = _dtype(model)
    known = {} if dtype == "auto" else {"torch_dtype": dtype}
    held = diffusers.DiffusionPipeline.from_pretrained(model.path, **options, **known, **spread)
    held.set_progress_bar_config(disable=True)
    return held if spread else held.to(device())


def _check_no_code(model: Model) -> None:
    """Refuse a pipeline whose class, or that of a part, is in a module beside the weights. Some versions of
    diffusers would import it from a local folder, whatever they are told."""
    folder = Path(model.path)
    try:
        index = json.loads((folder / "model_index.json").read_text())
        named = {part: each[0] for part, each in index.items() if isinstance(each, list) and each}
    except (OSError, ValueError, AttributeError) as error:
        raise LoadFailed(
            f"model {model.name!r}: {folder} has no model_index.json to read: {error}"
        ) from error
    for part, module in named.items():
        places = (folder / part / f"{module}.py", folder / f"{module}.py")
        if part == "_class_name" or any(each.exists() for each in places):
            raise LoadFailed(
                f"model {model.name!r}: {part} names the module {module!r} beside the weights, "
                "which is not run"
            )


def arguments_of(pipeline: Any) -> frozenset[str]:
    """Return the names of what a pipeline may be called with."""
    return frozenset(inspect.signature(type(pipeline).__call__).parameters)


def _options(model: Model) -> dict[str, bool]:
    if not model.path:
        raise LoadFailed(
            f"model {model.name!r} names no weights; declare it with --path, or put them into a folder of "
            "its name in MODEL_CACHE_DIR"
        )
    model.progress(f"reading weights from {model.path}")
    return {"local_files_only": True, "trust_remote_code": False}


def device() -> str:
    """Return the first device that this process sees."""
    torch = importlib.import_module("torch")
    return "cuda" if torch.cuda.is_available() else "cpu"


def most_tokens(model: Any) -> int:
    """Return how many tokens a model takes; 0 if it does not say."""
    return int(getattr(model.config, "max_position_embeddings", 0) or 0)


def _dtype(model: Model) -> Any:
    name = model.options.get("dtype", "auto")
    if name not in DTYPES:
        raise LoadFailed(f"model {model.name!r}: dtype is {name!r}; give {', '.join(DTYPES)}")
    return "auto" if name == "auto" else getattr(importlib.import_module("torch"), name)


def _map() -> dict[str, str]:
    """Spread the weights over several devices, if there are; the package accelerate does that."""
    torch = importlib.import_module("torch")
    return {"device_map": "auto"} if torch.cuda.device_count() > 1 else {}
