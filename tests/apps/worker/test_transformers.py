"""Handlers on torch and transformers, on a CPU, with a tiny model that the test makes."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_orchestrator.api import session
from tests.apps.worker.conftest import NewWorker
from tests.support.patience import PATIENCE_S
from tests.support.scripted_server import Peer
from tests.support.tiny_models import LOAD_S, LONGEST, PROGRAM, weights

pytestmark = pytest.mark.real
__all__ = ["weights"]


class Asker:
    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    async def ask(self, task: str, path: Path, task_type: str, **parameters: Any) -> None:
        model = session.Model("tiny", str(path))
        await self.peer.assign(task, task_type, parameters, model=model)

    async def answer(
        self, task: str, path: Path, task_type: str = "text_generation", **parameters: Any
    ) -> Any:
        await self.ask(task, path, task_type, **parameters)
        ended = await self.peer.until(lambda: self._ended(task), LOAD_S)
        return msgspec.json.decode(ended.result) if isinstance(ended, session.Done) else ended.error

    def _ended(self, task: str) -> Any:
        kinds = session.Done | session.Failed
        return next((m for m in self.peer.received if isinstance(m, kinds) and m.task == task), None)


@pytest.fixture
async def asker(peer: Peer, new_worker: NewWorker) -> Asker:
    new_worker(program=PROGRAM)
    hello = await peer.receive(session.Hello)
    assert {"text_generation", "embedding"} <= set(hello.model_types)
    return Asker(peer)


async def test_text_is_the_same_at_once_in_pieces_and_in_a_batch_and_ends_when_cancelled(
    asker: Asker, weights: Path
) -> None:
    prompt = "hello the quick brown"
    whole = await asker.answer("t1", weights, prompt=prompt, max_tokens=12)
    assert whole["prompt_tokens"] == 4
    assert 1 <= whole["completion_tokens"] <= 12
    assert whole["finish_reason"] in ("stop", "length")
    pieces = await asker.answer("t2", weights, prompt=prompt, max_tokens=12, stream=True)
    assert pieces["text"] == whole["text"]
    sent = [m for m in asker.peer.received if isinstance(m, session.Values) and m.task == "t2"]
    assert sent
    both = await asker.answer("t3", weights, prompts=[prompt, "a lazy dog"], max_tokens=12)
    assert both["answers"][0]["text"] == whole["text"]
    chat = await asker.answer("t4", weights, messages=[{"role": "user", "content": "hello"}], max_tokens=4)
    assert chat["completion_tokens"] >= 1
    assert asker.peer.log("t1").startswith("loading model tiny\n")
    assert "loading" not in asker.peer.log("t2")
    await asker.ask("t5", weights, "text_generation", prompt="hello", max_tokens=LONGEST - 8, stream=True)
    await asker.peer.receive(session.Started, "t5")
    await asker.peer.send(session.Cancel("t5", 1, grace_s=30.0))
    async with asyncio.timeout(PATIENCE_S):
        kinds = session.Done | session.Cancelled
        await asker.peer.until(
            lambda: next((m for m in asker.peer.received if isinstance(m, kinds) and m.task == "t5"), None)
        )
    await asker.answer("t6", weights, prompt="hello", max_tokens=1)
    assert "loading" not in asker.peer.log("t6")


async def test_vectors_of_texts_do_not_depend_on_their_batch(asker: Asker, weights: Path) -> None:
    found = await asker.answer("t1", weights, "embedding", texts=["hello world", "a lazy dog jumps over"])
    (alone,) = (await asker.answer("t2", weights, "embedding", texts=["hello world"]))["embeddings"]
    assert (found["dimensions"], found["tokens"]) == (32, 7)
    assert sum(each * each for each in alone) == pytest.approx(1.0, abs=1e-4)
    assert found["embeddings"][0] == pytest.approx(alone, abs=1e-4)


async def test_what_cannot_be_is_said_clearly(asker: Asker, weights: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    cases: tuple[tuple[Path, dict[str, Any], str], ...] = (
        (weights, {"prompt": "dog " * 2 * LONGEST}, "this model takes 128 together"),
        (weights, {"prompt": "dog " * 250_000}, "this model takes 128 together"),
        (weights, {}, "give one of prompt, prompts and messages"),
        (weights, {"prompt": "a", "colour": 1}, "colour"),
        (tmp_path, {"prompt": "a"}, "model 'tiny' could not be loaded"),
        (tmp_path / "none", {"prompt": "a"}, "there is nothing at"),
    )
    for number, (path, parameters, says) in enumerate(cases):
        error = await asker.answer(f"t{number}", path, **parameters)
        assert says in error.message, error
