"""Weights of models so small that a CPU answers at once, made where torch is: in the environment of `make
.venv/models/ready`, by its Python. The tests' own environment has no torch.

    .venv/models/bin/python -m tests.support.tiny_models text FOLDER
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.patience import PATIENCE_S

PYTHON = Path(sys.prefix) / "models/bin/python"
PROGRAM = ("env", "OMP_NUM_THREADS=1", str(PYTHON), "-m", "gpu_orchestrator")
"""Our program in that environment: what it starts finds torch. Several threads of torch would spin while they
wait for each other, for seconds where other tests have the cores."""
LOAD_S = 4 * PATIENCE_S
"""Patience for what may load torch: that takes seconds of CPU, and ten if nobody has compiled it yet."""
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "hello", "world", ":")
LONGEST = 128
SIDE = 16


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a Llama of two layers, with a tokenizer of a few words."""
    return _kept("text", tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a Stable Diffusion that makes images of 16 x 16."""
    return _kept("image", tmp_path_factory.mktemp("pipeline"))


def _kept(kind: str, made: Path) -> Path:
    """Make the weights once for this environment and this module: it takes ten seconds of CPU. Of two tests
    that do so at a time, the first to end keeps its own."""
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing; run: make .venv/models/ready")
    version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    kept = PYTHON.parents[1] / f"tiny-{kind}-{version}"
    if not kept.exists():
        _make(kind, made)
        beside = Path(tempfile.mkdtemp(dir=kept.parent)) / kind
        shutil.copytree(made, beside)
        with suppress(OSError):
            beside.rename(kept)
    return kept


def _make(kind: str, folder: Path) -> None:
    command = [str(PYTHON), "-m", "tests.support.tiny_models", kind, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def make_tokenizer(folder: Path, kind: str = "PreTrainedTokenizerFast", **more: Any) -> int:
    """Write a tokenizer of a few words; return how many it knows."""
    tokenizers, transformers = import_module("tokenizers"), import_module("transformers")
    vocabulary = {word: at for at, word in enumerate(["<unk>", "<end>", *WORDS])}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    wrapped = getattr(transformers, kind)(
        tokenizer_object=plain, unk_token="<unk>", eos_token="<end>", pad_token="<end>", **more
    )
    wrapped.save_pretrained(folder)
    return len(vocabulary)


def make_text(folder: Path) -> None:
    torch, transformers = import_module("torch"), import_module("transformers")
    words = make_tokenizer(folder)
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=words,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=LONGEST,
        eos_token_id=1,
        pad_token_id=1,
        bos_token_id=None,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def make_image(folder: Path) -> None:
    torch, transformers, diffusers = map(import_module, ("torch", "transformers", "diffusers"))
    words = make_tokenizer(folder / "tokenizer", model_max_length=16)
    torch.manual_seed(1)
    text = transformers.CLIPTextConfig(
        vocab_size=words,
        hidden_size=32,
        intermediate_size=37,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=16,
        projection_dim=32,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    net = diffusers.UNet2DConditionModel(
        block_out_channels=(4, 8),
        layers_per_block=1,
        sample_size=SIDE // 2,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        norm_num_groups=2,
    )
    coder = diffusers.AutoencoderKL(
        block_out_channels=(4, 8),
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=2,
    )
    whole = diffusers.StableDiffusionPipeline(
        vae=coder,
        text_encoder=transformers.CLIPTextModel(text),
        tokenizer=transformers.PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer"),
        unet=net,
        scheduler=diffusers.DDIMScheduler(steps_offset=1, clip_sample=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    whole.save_pretrained(folder)


if __name__ == "__main__":
    {"text": make_text, "image": make_image}[sys.argv[1]](Path(sys.argv[2]))
