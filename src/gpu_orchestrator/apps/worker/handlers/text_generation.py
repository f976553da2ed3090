"""`text_generation`: continues text, or answers messages, with a causal language model of transformers.

`{"prompt": "…"}`, `{"messages": [{"role": "user", "content": "…"}]}`, or `{"prompts": ["…", "…"]}` for a
batch. With `stream` each piece of text is sent as it is there. A task type where torch and transformers are
installed.
"""

import importlib
from time import monotonic
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gpu_orchestrator.apps.worker.handlers import torch_device
from gpu_orchestrator.apps.worker.task import BadParameters, Model, Task


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: str
    content: str


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`temperature` 0 takes the likeliest token each time."""

    prompt: str = ""
    prompts: Annotated[list[str], Meta(max_length=256)] = []
    messages: Annotated[list[Message], Meta(max_length=1000)] = []
    max_tokens: Annotated[int, Meta(ge=1, le=1_000_000)] = 256
    temperature: Annotated[float, Meta(ge=0, le=5)] = 0.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    stop: Annotated[list[str], Meta(max_length=16)] = []
    seed: int | None = None
    stream: bool = False


class TextGeneration:
    def load(self, model: Model) -> None:
        self.tokenizer, self.model = torch_device.load(model, "AutoModelForCausalLM")

    def run(self, task: Task) -> dict[str, Any]:
        asked = task.parameters(Parameters)
        prompts = self._prompts(asked)
        inputs = self.tokenizer(prompts, return_tensors="pt", padding=len(prompts) > 1).to(self.model.device)
        length = int(inputs["input_ids"].shape[1])
        self._check_length(length, asked.max_tokens)
        began = monotonic()
        found = self._generate(task, asked, inputs)
        task.check()
        seconds = monotonic() - began
        answers = [self._answer(row[length:], asked.max_tokens) for row in found.tolist()]
        usage = {
            "prompt_tokens": int(inputs["attention_mask"].sum()),
            "completion_tokens": sum(each["tokens"] for each in answers),
            "seconds": round(seconds, 4),
        }
        return {"answers": answers, **usage} if asked.prompts else {**answers[0], **usage}

    def _prompts(self, asked: Parameters) -> list[str]:
        if sum((bool(asked.prompt), bool(asked.prompts), bool(asked.messages))) != 1:
            raise BadParameters("give one of prompt, prompts and messages")
        if asked.stream and len(asked.prompts) > 1:
            raise BadParameters("stream is for one prompt; give prompt or messages")
        if not asked.messages:
            return asked.prompts or [asked.prompt]
        messages = [{"role": each.role, "content": each.content} for each in asked.messages]
        if not self.tokenizer.chat_template:
            return ["\n".join(f"{each['role']}: {each['content']}" for each in messages) + "\nassistant:"]
        return [self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)]

    def _check_length(self, prompt: int, more: int) -> None:
        most = torch_device.most_tokens(self.model)
        if most and prompt + more > most:
            raise BadParameters(
                f"the prompt has {prompt} tokens and max_tokens is {more}; this model takes {most} together: "
                "give a shorter prompt, or a smaller max_tokens"
            )

    def _generate(self, task: Task, asked: Parameters, inputs: Any) -> Any:
        torch, transformers = (importlib.import_module(each) for each in torch_device.NEEDED)

        def is_over(tokens: Any, _scores: Any, **_: Any) -> Any:
            return torch.full((tokens.shape[0],), task.is_cancelled, device=tokens.device, dtype=torch.bool)

        class Sender(transformers.TextStreamer):  # type: ignore[name-defined,misc]
            def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
                if text:
                    task.send({"text": text})

        how: dict[str, Any] = {"do_sample": asked.temperature > 0}
        if asked.temperature > 0:
            how |= {"temperature": asked.temperature, "top_p": asked.top_p}
        if asked.stop:
            how |= {"stop_strings": asked.stop, "tokenizer": self.tokenizer}
        if asked.stream:
            how["streamer"] = Sender(self.tokenizer, skip_prompt=True, skip_special_tokens=True)
        if asked.seed is not None:
            transformers.set_seed(asked.seed)
        with torch.inference_mode():
            return self.model.generate(
                **inputs,
                max_new_tokens=asked.max_tokens,
                pad_token_id=self.tokenizer.pad_token_id,
                stopping_criteria=transformers.StoppingCriteriaList([is_over]),
                **how,
            )

    def _answer(self, tokens: list[int], most: int) -> dict[str, Any]:
        """Return one answer; what follows its end is padding."""
        config = self.model.generation_config.eos_token_id
        ends = {*(config if isinstance(config, list) else [config]), self.tokenizer.eos_token_id} - {None}
        at = next((at for at, token in enumerate(tokens) if token in ends), None)
        count = len(tokens) if at is None else at + 1
        text = self.tokenizer.decode(tokens[:count], skip_special_tokens=True)
        reason = "length" if at is None and count >= most else "stop"
        return {"text": text, "tokens": count, "finish_reason": reason}
