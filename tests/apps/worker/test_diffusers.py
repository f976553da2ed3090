"""`image_generation` on a CPU, with a tiny Stable Diffusion that the test makes."""

import base64
from pathlib import Path
from typing import Any

import pytest

from gpu_orchestrator.api import session
from tests.apps.worker.conftest import NewWorker
from tests.apps.worker.test_transformers import Asker
from tests.support.scripted_server import Peer
from tests.support.tiny_models import LOAD_S, PROGRAM, SIDE, pipeline

pytestmark = pytest.mark.real
__all__ = ["pipeline"]
PNG, JPEG = b"\x89PNG\r\n", b"\xff\xd8\xff"


@pytest.fixture
async def asker(peer: Peer, new_worker: NewWorker) -> Asker:
    new_worker(program=PROGRAM)
    assert "image_generation" in (await peer.receive(session.Hello)).model_types
    return Asker(peer)


async def test_images_come_as_asked(asker: Asker, pipeline: Path) -> None:
    async def made(task: str, **asked: Any) -> list[Any]:
        answer = await asker.answer(task, pipeline, "image_generation", steps=2, **asked)
        assert isinstance(answer, dict), answer
        return list(answer["images"])

    (first,) = await made("t1", prompt="a brown dog", seed=7)
    assert base64.b64decode(first["data"]).startswith(PNG)
    assert (first["width"], first["height"], first["format"]) == (SIDE, SIDE, "png")
    assert asker.peer.log("t1").endswith("step 1\nstep 2\n")
    (again,) = await made("t2", prompt="a brown dog", seed=7)
    (other,) = await made("t3", prompt="a brown dog", seed=8)
    assert first["data"] == again["data"] != other["data"]
    sized = {"width": 32, "height": 16, "format": "jpeg"}
    several = await made("t4", prompts=["dog", "fox"], images=2, negative_prompt="fox", **sized)
    assert [(each["width"], each["height"]) for each in several] == [(32, 16)] * 4
    assert base64.b64decode(several[3]["data"]).startswith(JPEG)


async def test_what_cannot_be_is_said_clearly(asker: Asker, pipeline: Path, tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "Mine", "_diffusers_version": "0.35.0"}')
    cases: tuple[tuple[Path, dict[str, Any], str], ...] = (
        (pipeline, {}, "give one of prompt and prompts"),
        (pipeline, {"prompts": ["a"] * 9, "images": 2}, "18 images are asked for; at most 16"),
        (pipeline, {"prompt": "a", "width": 12, "height": 16}, "give multiples of 8"),
        (pipeline, {"prompt": "a", "width": 4096, "height": 4096}, "pixels"),
        (pipeline, {"prompt": "a", "width": 16}, "width and height belong together"),
        (pipeline, {"prompt": "a", "format": "gif"}, "gif"),
        (tmp_path, {"prompt": "a"}, "model 'tiny' could not be loaded"),
    )
    for number, (path, parameters, says) in enumerate(cases):
        error = await asker.answer(f"t{number}", path, "image_generation", **parameters)
        assert isinstance(error, session.TaskError), error
        assert says in error.message


async def test_cancelled_task_stops_between_two_steps(asker: Asker, pipeline: Path) -> None:
    await asker.ask("t1", pipeline, "image_generation", prompt="dog", steps=1000)
    await asker.peer.until(lambda: "step 3" in asker.peer.log("t1"), LOAD_S)
    await asker.peer.send(session.Cancel("t1", 1, grace_s=60.0))
    await asker.peer.receive(session.Cancelled, "t1")
    assert "step 1000" not in asker.peer.log("t1")
    await asker.answer("t2", pipeline, "image_generation", prompt="dog", steps=1)
    assert "loading" not in asker.peer.log("t2")
