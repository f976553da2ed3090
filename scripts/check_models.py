"""Try models on a real GPU: load, evict, load another, run out of memory, and tokens per second against plain
transformers in the same run. Needs torch and transformers; makes its weights, and fetches nothing.

    python scripts/check_models.py --layers 16 --hidden 2048     # some 2 GB in bfloat16

Starts a server with one worker that keeps one model (MODEL_CACHE_SIZE=1). Prints what it saw, and last one
line of JSON. Ends with 1 if something is not as it should be. `--cpu` is for a try without a GPU.
"""

# ruff: noqa: S101, S106, S310, T201, TID251 - a script, outside the pure packages; it calls its own server

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

KEY = "k" * 64
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
PROMPT = " ".join(WORDS)
GREEDY = '''
class Greedy:
    """Takes more device memory than there is."""

    def load(self, model):
        import torch

        self.kept = []
        while True:
            self.kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))

    def run(self, task):
        return None
'''


def make_weights(folder: Path, seed: int, options: argparse.Namespace) -> None:
    """Write a Llama with random weights, and a tokenizer of a few words."""
    torch, tokenizers, transformers = map(import_module, ("torch", "tokenizers", "transformers"))
    vocabulary = {word: at for at, word in enumerate(["<unk>", "<end>", *WORDS])}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="<unk>", eos_token="<end>"
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    heads = max(options.hidden // 128, 2)
    config = transformers.LlamaConfig(
        vocab_size=32_000,
        hidden_size=options.hidden,
        intermediate_size=options.hidden * 3,
        num_hidden_layers=options.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=8192,
        bos_token_id=None,
        eos_token_id=31_999,  # hardly ever the likeliest
        pad_token_id=1,
    )
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def plain_seconds(folder: Path, tokens: int) -> float:
    """Generate with transformers alone, in a process of its own; return the seconds of the second time."""
    program = f"""
import time, torch, transformers
tokenizer = transformers.AutoTokenizer.from_pretrained({str(folder)!r})
device = "cuda" if torch.cuda.is_available() else "cpu"
model = transformers.AutoModelForCausalLM.from_pretrained({str(folder)!r}, dtype="auto").to(device).eval()
inputs = tokenizer([{PROMPT!r}], return_tensors="pt").to(device)
inputs.pop("token_type_ids", None)
for _ in range(2):
    began = time.monotonic()
    with torch.inference_mode():
        found = model.generate(**inputs, max_new_tokens={tokens}, do_sample=False, pad_token_id=1)
    found.tolist()
    seconds = time.monotonic() - began
print("SECONDS", seconds)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.rpartition("SECONDS")[2])


def used_mib() -> int:
    """Return the memory of the first GPU that is in use, as the driver says; 0 without a driver."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 0
    return int(done.stdout.split()[0]) if done.returncode == 0 else 0


class Manager:
    """The server that this script started."""

    def __init__(self, url: str, gpus: int) -> None:
        self.url, self.gpus = url, gpus

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=620) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{method} {path}: {error.code} {error.read().decode()}") from error

    def run(self, task_type: str, model: str, parameters: Any) -> Any:
        body = {
            "task_type": task_type,
            "model_name": model,
            "parameters": parameters,
            "timeout": 600,
            "resources": {"gpus": self.gpus},
        }
        return self.call("POST", "/tasks?wait=600", body)

    def worker(self) -> Any:
        (found,) = self.call("GET", "/workers")["workers"]
        return self.call("GET", f"/workers/{found['worker_id']}")

    def wait_for(self, model: str) -> Any:
        """Wait until this is the one model that is loaded, and measured."""
        for _ in range(300):
            loaded = self.worker()["loaded_models"]
            if [each["name"] for each in loaded] == ([model] if model else []):
                return loaded[0] if loaded else None
            time.sleep(0.1)
        raise SystemExit(f"never only {model or 'nothing'} loaded: {self.worker()['loaded_models']}")


@contextmanager
def serving(folder: Path, options: argparse.Namespace) -> Iterator[Manager]:
    (folder / "greedy_model.py").write_text(GREEDY)
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    words = ["up", "--quiet", "--port", str(port), "--data", str(folder / "data")]
    environ = {**os.environ, "API_KEY": KEY, "MODEL_CACHE_SIZE": "1", "RATE_LIMIT_PER_MINUTE": "0"}
    environ |= {"MODEL_LOAD_TIMEOUT": "600", "MAX_MODEL_CACHE_SIZE_GB": "1000", "MAX_RETRIES": "3"}
    command = [sys.executable, "-m", "gpu_orchestrator", *words, "--model", "greedy=greedy_model:Greedy"]
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=log, stderr=log)
    try:
        manager = Manager(f"http://127.0.0.1:{port}", 0 if options.cpu else 1)
        _wait_until_there(manager, folder / "up.log")
        yield manager
    except BaseException:
        print((folder / "up.log").read_text()[-8000:])
        raise
    finally:
        process.terminate()
        process.wait(60)


def _wait_until_there(manager: Manager, log: Path) -> None:
    for _ in range(600):
        try:
            if manager.call("GET", "/workers")["online"]:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"the server did not start:\n{log.read_text()[-3000:]}")


def check_eviction(manager: Manager, folders: dict[str, Path], found: dict[str, Any]) -> None:
    """Load one model, then the other in its place, then none; note what the driver says each time."""
    found["memory_before_mib"] = used_mib()
    for name, folder in folders.items():
        body = {"handler": "text_generation", "path": str(folder), "memory": found["declared"]}
        manager.call("PUT", f"/models/{name}", body)
        ended = manager.run("text_generation", name, {"prompt": PROMPT, "max_tokens": 8})
        assert ended["status"] == "completed", ended
        loaded = manager.wait_for(name)
        found[f"load_{name}_s"] = loaded["load_seconds"]
        found[f"memory_with_{name}_mib"] = used_mib()
        print(f"{name}: loaded in {loaded['load_seconds']} s; the driver has {used_mib()} MiB in use")
    manager.call("POST", "/models/unload", {"model_name": "b", "force": True})
    manager.wait_for("")
    time.sleep(2.0)
    found["memory_after_mib"] = used_mib()


def check_memory_error(manager: Manager, found: dict[str, Any]) -> None:
    """Let a model run out of memory: the worker lives on, and nothing is tried a second time there."""
    epoch = manager.worker()["epoch"]
    ended = manager.run("greedy", "greedy", {})
    found["oom_type"], found["oom_attempts"] = ended["error"]["type"], ended["attempt"]
    found["oom_status"], found["same_worker"] = ended["status"], manager.worker()["epoch"] == epoch
    print(
        f"out of memory: {ended['status']} after {ended['attempt']} attempt(s): {ended['error']['message']}"
    )
    after = manager.run("text_generation", "a", {"prompt": PROMPT, "max_tokens": 8})
    found["works_after"] = after["status"] == "completed"


def check_speed(manager: Manager, folder: Path, tokens: int, found: dict[str, Any]) -> None:
    """Compare tokens per second with transformers alone, in turns: of the generation, and of the whole task.
    The model is evicted in between, so that the other has the device for itself."""
    ours, whole, plain = [], [], []
    for _ in range(3):
        for is_warm in (False, True):
            ended = manager.run("text_generation", "a", {"prompt": PROMPT, "max_tokens": tokens})
            if is_warm:
                count = ended["result"]["completion_tokens"]
                ours.append(count / ended["result"]["seconds"])
                whole.append(count / ended["duration_seconds"])
        manager.call("POST", "/models/unload", {"model_name": "a", "force": True})
        manager.wait_for("")
        plain.append(tokens / plain_seconds(folder, tokens))
    found["tokens_per_s"], found["plain_tokens_per_s"] = round(median(ours), 1), round(median(plain), 1)
    found["speed_ratio"] = round(median(ours) / median(plain), 3)
    found["whole_task_ratio"] = round(median(whole) / median(plain), 3)
    print(
        f"tokens/s: {found['tokens_per_s']} in a task, {found['plain_tokens_per_s']} with transformers alone"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--memory", default="8GiB", help="what is declared for each model")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {"declared": options.memory}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folders = {each: folder / each for each in "ab"}
        for seed, each in enumerate(folders.values()):
            make_weights(each, seed, options)
        with serving(folder, options) as manager:
            check_eviction(manager, folders, found)
            if not options.cpu:
                check_memory_error(manager, found)
            check_speed(manager, folders["a"], options.tokens, found)
    grown = found["memory_after_mib"] - found["memory_before_mib"]
    is_good = found["speed_ratio"] >= 0.95 and grown < 100
    if not options.cpu:
        is_good &= found["oom_attempts"] == 1 and found["same_worker"] and found["works_after"]
    print(json.dumps({**found, "is_good": is_good}))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
