"""`image_generation` on a CPU, with a tiny Stable Diffusion that the test makes."""

import base64
import json
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


async def test_images_come_as_asked_and_end_between_two_steps_when_cancelled(
    asker: Asker, pipeline: Path
) -> None:
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
    slow = {"width": 256, "height": 256, "steps": 900}  # small ones would be done before the test looks
    await asker.ask("t5", pipeline, "image_generation", prompt="dog", **slow)
    await asker.peer.until(lambda: "step 3" in asker.peer.log("t5"), LOAD_S)
    await asker.peer.send(session.Cancel("t5", 1, grace_s=60.0))
    await asker.peer.receive(session.Cancelled, "t5")
    assert "step 900" not in asker.peer.log("t5")
    assert not [each for each in asker.peer.received if isinstance(each, session.Failed)]
    await asker.answer("t6", pipeline, "image_generation", prompt="dog", steps=1)
    assert "loading" not in asker.peer.log("t6")


async def test_code_beside_the_weights_is_not_run(asker: Asker, tmp_path: Path) -> None:
    """Diffusers can be told of a class in a module of the same folder."""
    ran = tmp_path / "ran"
    cases: tuple[tuple[dict[str, Any], str, str], ...] = (
        ({"_class_name": ["evil", "Mine"]}, "evil.py", "names the module 'evil' beside the weights"),
        (
            {"_class_name": "DDPMPipeline", "unet": ["net", "Net"]},
            "unet/net.py",
            "unet names the module 'net'",
        ),
        ({"unet": ["net", "Net"]}, "net.py", "unet names the module 'net'"),
    )
    for number, (index, file, says) in enumerate(cases):
        folder = tmp_path / f"{number}"
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text(f"open({str(ran)!r}, 'w')")
        (folder / "model_index.json").write_text(json.dumps(index))
        error = await asker.answer(f"t{number}", folder, "image_generation", prompt="a")
        assert says in error.message
    missing = await asker.answer("none", tmp_path, "image_generation", prompt="a")
    assert (missing.type, "no model_index.json" in missing.message) == ("ModelLoadFailed", True)
    assert not ran.exists()


async def test_what_cannot_be_is_said_clearly(asker: Asker, pipeline: Path) -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "give one of prompt and prompts"),
        ({"prompts": ["a"] * 9, "images": 2}, "18 images are asked for; at most 16"),
        ({"prompt": "a", "width": 12, "height": 16}, "give multiples of 8"),
        ({"prompt": "a", "width": 4096, "height": 4096}, "pixels"),
        ({"prompt": "a", "width": 16}, "width and height belong together"),
        ({"prompt": "a", "format": "gif"}, "gif"),
    )
    for number, (parameters, says) in enumerate(cases):
        error = await asker.answer(f"t{number}", pipeline, "image_generation", **parameters)
        assert isinstance(error, session.TaskError), error
        assert says in error.message
