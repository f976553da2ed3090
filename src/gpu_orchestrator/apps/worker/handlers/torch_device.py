"""What the handlers on torch and transformers share: local weights, and where they go. For runners alone.

Both libraries are imported when a model is loaded, by name: this package does not depend on them.
"""

import importlib
from typing import Any

from gpu_orchestrator.apps.worker.task import LoadFailed, Model

DTYPES = ("auto", "bfloat16", "float16", "float32")
NEEDED = ("torch", "transformers")


def load(model: Model, kind: str) -> tuple[Any, Any]:
    """Return the tokenizer and the model, of this class of transformers, from the folder that the registry
    names. Nothing is fetched, and no code that lies beside the weights is run."""
    if not model.path:
        raise LoadFailed(
            f"model {model.name!r} names no weights; declare it with --path, or put them into a folder of "
            "its name in MODEL_CACHE_DIR"
        )
    transformers = importlib.import_module("transformers")
    options = {"local_files_only": True, "trust_remote_code": False}
    model.progress(f"reading weights from {model.path}")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.path, **options)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    held = getattr(transformers, kind).from_pretrained(model.path, dtype=_dtype(model), **options, **_map())
    if not hasattr(held, "hf_device_map"):
        held = held.to(device())
    return tokenizer, held.eval()


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
