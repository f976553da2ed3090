"""The `openai` package as it is, with a manager, a real worker and a class that answers as handlers of text
and vectors do."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.apps.manager.conftest import KEY, TOKEN, NewSite, Site, new_site
from tests.apps.manager.http.test_key_routes import make
from tests.apps.worker import test_server
from tests.support import warm
from tests.support.patience import PATIENCE_S
from tests.support.tiny_models import PROGRAM, weights
from tests.support.workers import Worker, gone_within

pytestmark = pytest.mark.real
__all__ = ["new_site", "weights"]

HI: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one two three"}]
SERVER = "gpu_orchestrator.apps.worker.handlers.server:Server"
FOREVER: Any = [{"role": "user", "content": "more forever and ever"}]


class Served:
    """A site with one worker that has a model in the memory of its machine, and clients of it."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self.journal, self.gate = site, folder / "journal", folder / "gate"
        self.clients: list[AsyncOpenAI] = []

    @property
    def url(self) -> str:
        return f"{self.site.running.url}/v1"

    def client(self, key: str = KEY) -> AsyncOpenAI:
        client = AsyncOpenAI(base_url=self.url, api_key=key, max_retries=0)
        self.clients.append(client)
        return client

    async def declare(self, name: str, **rest: Any) -> None:
        body = {"handler": "talk", "gpus": 0, **rest}
        status, answer = await self.site.call("PUT", f"/models/{name}", body)
        assert status == 200, answer

    async def until_journal(self, text: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.journal.exists() or self.journal.read_text() != text:  # noqa: ASYNC110 - a file
                await asyncio.sleep(0.01)

    async def tasks(self) -> list[Any]:
        return list((await self.site.call("GET", "/tasks?label=openai"))[1]["tasks"])


@pytest.fixture
async def served(request: pytest.FixtureRequest, new_site: NewSite, tmp_path: Path) -> AsyncIterator[Served]:
    """With the parameter `PROGRAM`, the worker has torch."""
    served = Served(await new_site(rate_limit_per_minute=0, rate_limit_per_hour=0), tmp_path)
    classes = "--model", "talk=tests.support.model_classes:Talk", "--model", f"server={SERVER}"
    options = (*classes, "--simulate", "1xL4:24GiB")
    program = getattr(request, "param", (warm.PROGRAM,))
    worker = Worker(served.site.running.url, tmp_path / "log", *options, token=TOKEN, program=program)
    async with asyncio.timeout(PATIENCE_S):
        while (await served.site.call("GET", "/workers/w"))[1].get("status") != "online":  # noqa: ASYNC110 - asked over HTTP
            await asyncio.sleep(0.05)
    await served.declare("org/tiny", options={"journal": str(served.journal)})
    yield served
    for each in served.clients:
        await each.close()
    worker.close()
    gone_within(worker, PATIENCE_S)


async def test_package_gets_answers(served: Served) -> None:
    client = served.client()
    chat = await client.chat.completions.create(model="org/tiny", messages=HI)
    (choice,) = chat.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "three two one ")
    assert (choice.finish_reason, chat.model, chat.object) == ("stop", "org/tiny", "chat.completion")
    assert chat.usage is not None
    assert (chat.usage.prompt_tokens, chat.usage.completion_tokens, chat.usage.total_tokens) == (3, 3, 6)
    short = await client.chat.completions.create(
        model="org/tiny",
        messages=HI,
        max_completion_tokens=2,
        stop=" t",
        extra_headers={"X-Priority": "high"},
    )
    assert (short.choices[0].message.content, short.choices[0].finish_reason) == ("three", "stop")
    newest, *_ = await served.tasks()
    assert (newest["priority"], f"chatcmpl-{newest['task_id']}") == (75, short.id)
    text = await client.completions.create(model="org/tiny", prompt="a b")
    assert (text.choices[0].text, text.object) == ("b a ", "text_completion")
    for chosen in ({}, {"encoding_format": "float"}):
        vectors = await client.embeddings.create(model="org/tiny", input=["abc", "d"], **chosen)  # type: ignore[arg-type]
        assert [each.embedding for each in vectors.data] == [[3.0, 0.5], [1.0, 0.5]]
        assert vectors.usage.total_tokens == 2
    assert [each.id for each in (await client.models.list()).data] == ["org/tiny", "server", "talk"]
    assert (await client.models.retrieve("org/tiny")).owned_by == "gpu-orchestrator"


async def test_package_gets_streams(served: Served) -> None:
    client = served.client()
    stream = await client.chat.completions.create(
        model="org/tiny", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    *texts, last, used = [each async for each in stream]
    assert [each.choices[0].delta.content for each in texts if each.choices[0].delta.content] != []
    assert "".join(each.choices[0].delta.content or "" for each in texts) == "three two one "
    assert texts[0].choices[0].delta.role == "assistant"
    assert (last.choices[0].finish_reason, used.choices, texts[0].usage) == ("stop", [], None)
    assert used.usage is not None
    assert used.usage.total_tokens == 6

    def with_the_blocking_client() -> str:
        with OpenAI(base_url=served.url, api_key=KEY, max_retries=0) as blocking:
            pieces = blocking.completions.create(model="org/tiny", prompt="a b c", stop=["a"], stream=True)
            return "".join(each.choices[0].text for each in pieces)

    assert await asyncio.to_thread(with_the_blocking_client) == "c b "
    steps = await client.completions.create(model="org/tiny", prompt="only steps", stream=True)
    assert "".join([each.choices[0].text async for each in steps]) == "steps only"
    with pytest.raises(openai.BadRequestError, match="the prompt has 1000000 tokens"):
        await client.chat.completions.create(
            model="org/tiny", messages=[{"role": "user", "content": "x" * 1_000_000}], stream=True
        )


async def test_client_that_goes_away_ends_the_work(served: Served) -> None:
    client = served.client()
    stream = await client.chat.completions.create(model="org/tiny", messages=FOREVER[:], stream=True)
    assert (await anext(aiter(stream))).choices[0].delta.role == "assistant"
    await served.until_journal("begun")
    await stream.close()
    await served.until_journal("ended")
    served.journal.unlink()
    waiting = asyncio.create_task(client.chat.completions.create(model="org/tiny", messages=FOREVER))
    await served.until_journal("begun")
    waiting.cancel()
    await served.until_journal("ended")
    for each in await served.tasks():
        assert (await served.site.wait(each["task_id"]))["status"] == "cancelled"


async def test_client_that_will_not_wait_for_a_load_is_told_when_to_come_back(served: Served) -> None:
    await served.declare("cold", options={"gate": str(served.gate)}, load_seconds=30)
    client = served.client().with_options(default_headers={"X-Cold-Start": "refuse"})
    said = set()
    for _ in range(3):
        with pytest.raises(openai.InternalServerError) as refused:
            await client.chat.completions.create(model="cold", messages=HI)
        assert (refused.value.status_code, refused.value.code) == (503, "model_loading")
        assert 25 <= int(refused.value.response.headers["Retry-After"]) <= 60
        said.add(refused.value.message)
    assert len(said) == 1, "one load for all"
    served.gate.touch()
    async with asyncio.timeout(PATIENCE_S):
        while not (await client.models.retrieve("cold")).model_extra["loaded"]:  # type: ignore[index] # noqa: ASYNC110 - asked over HTTP
            await asyncio.sleep(0.05)
    answer = await client.chat.completions.create(model="cold", messages=HI)
    assert answer.choices[0].message.content == "three two one "


async def test_server_that_a_worker_starts_serves_and_comes_back(served: Served) -> None:
    client = served.client()
    given = test_server.options(served.journal)
    await served.declare("served", handler="server", gpus=1, memory="8GiB", options=given)
    stream = await client.chat.completions.create(model="served", messages=HI, stream=True)
    assert "".join([each.choices[0].delta.content or "" async for each in stream]) == "three two one "
    vectors = await client.embeddings.create(model="served", input="abc")
    assert vectors.data[0].embedding == [3.0]
    broken = await client.completions.create(model="served", prompt="crash word", stream=True)
    with pytest.raises(openai.APIError) as interrupted:
        [each async for each in broken]
    assert interrupted.value.code == "answer_interrupted"
    text = await client.completions.create(model="served", prompt="a b")
    assert text.choices[0].text == "b a "


@pytest.mark.parametrize("served", [PROGRAM], indirect=True, ids=["torch"])
async def test_model_of_transformers_answers_the_package(served: Served, weights: Path) -> None:
    client = served.client()
    for handler in ("text_generation", "embedding"):
        await served.declare(handler[:4], handler=handler, path=str(weights))
    asked: Any = {"model": "text", "messages": [{"role": "user", "content": "hello world"}], "max_tokens": 12}
    whole = await client.chat.completions.create(**asked)
    assert whole.usage is not None
    assert 1 <= whole.usage.completion_tokens <= 12
    stream = await client.chat.completions.create(**asked, stream=True)
    pieces = [each.choices[0].delta.content or "" async for each in stream]
    assert "".join(pieces) == whole.choices[0].message.content
    longer = await client.chat.completions.create(**asked | {"max_tokens": 100}, stream=True)
    assert len([each async for each in longer if each.choices[0].delta.content]) > 1
    with pytest.raises(openai.BadRequestError, match="this model takes 128 together"):
        await client.completions.create(model="text", prompt="dog " * 250_000)
    with pytest.raises(openai.BadRequestError, match="presence_penalty"):
        await client.completions.create(model="text", prompt="dog", presence_penalty=1)
    vectors = await client.embeddings.create(model="embe", input=["hello world", "a lazy dog"])
    assert [len(each.embedding) for each in vectors.data] == [32, 32]


async def test_package_gets_errors_as_its_own_exceptions(served: Served) -> None:
    client, site = served.client(), served.site

    async def refused(kind: type[openai.APIStatusError], by: AsyncOpenAI = client, **rest: Any) -> Any:
        with pytest.raises(kind) as found:
            await by.chat.completions.create(**{"model": "org/tiny", "messages": HI, **rest})
        assert isinstance(found.value.body, dict)
        assert found.value.body.keys() == {"message", "type", "param", "code"}
        return found.value

    stranger = await refused(openai.AuthenticationError, served.client("gpo_wrong"))
    assert (stranger.code, stranger.type) == ("invalid_api_key", "authentication_error")
    reader = (await make(site, "reader", scopes=["read"]))["key"]
    await refused(openai.PermissionDeniedError, served.client(reader))
    unknown = await refused(openai.NotFoundError, model="gpt-4")
    assert (unknown.code, unknown.param) == ("model_not_found", "model")
    assert "known: org/tiny, server, talk" in unknown.message
    assert (await refused(openai.BadRequestError, n=2)).param == "n"
    assert (await refused(openai.BadRequestError, extra_headers={"X-Cold-Start": "x"})).status_code == 400
    await served.declare("giant", memory="80GiB", gpus=1)
    large = await refused(openai.ConflictError, model="giant")
    assert large.response.headers["X-Should-Retry"] == "false"
    failed = await refused(openai.InternalServerError, messages=[{"role": "user", "content": "fail"}])
    assert (failed.code, "as asked" in failed.message) == ("runtime_error", True)
    with pytest.raises(openai.APIStatusError) as too_large:
        await client.embeddings.create(model="org/tiny", input="x" * 9_000_000)
    assert too_large.value.status_code == 413
    await served.declare("gone", handler="elsewhere")
    assert (await refused(openai.InternalServerError, model="gone")).code == "no_worker"
    limited = (await make(site, "limited", limits={"requests_per_minute": 1}))["key"]
    ann = served.client(limited)
    await ann.chat.completions.create(model="org/tiny", messages=HI)
    assert int((await refused(openai.RateLimitError, ann)).response.headers["Retry-After"]) > 0
    status, answer = await site.call("GET", "/v1/nothing")
    assert (status, answer["error"]["type"]) == (404, "not_found_error")
    status, answer = await site.call("GET", "/nothing")
    assert (status, answer["error"]["details"]) == (404, {})
