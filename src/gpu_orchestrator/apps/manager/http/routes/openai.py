"""OpenAI's API on the models of the workers: each request is a task of its model's handler.

Keys, scopes, quotas, rate limits, priorities and fair share are those of tasks, and so is the audit log.
"""

from time import time
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from gpu_orchestrator.apps.manager import errors, task_schema
from gpu_orchestrator.apps.manager.fleet.models import KnownModel
from gpu_orchestrator.apps.manager.http import cold_start, model_loading, submission
from gpu_orchestrator.apps.manager.http.openai_answer import Asked, TextAnswer, TextStream, WholeAnswer
from gpu_orchestrator.apps.manager.http.openapi import described
from gpu_orchestrator.apps.manager.http.responses import body_of, json_response
from gpu_orchestrator.apps.manager.http.route_auth import header, manager_of
from gpu_orchestrator.apps.manager.manager import Manager
from gpu_orchestrator.apps.manager.openai import answers, chunks, problems, requests
from gpu_orchestrator.apps.manager.openai.answers import Embedded, Head

router = APIRouter(prefix="/v1", tags=["OpenAI"])
KEPT_S = 3600.0
"""How long the task of an answer is kept at most: its client has the answer already."""
COLD_START, PRIORITY = b"x-cold-start", b"x-priority"
COME_BACK_S = 10.0
OPENAI: dict[str, Any] = {"error": problems.OpenAiError}


@router.get("/models", **described(answers.OpenAiModelList, needs="read", **OPENAI))
async def models(request: Request) -> Response:
    """List the models, as OpenAI's API does."""
    manager = manager_of(request)
    await manager.overview.refresh()
    names = {*manager.models.models, *manager.overview.model_types}
    shown = [_shown(manager, manager.models.get(name) or KnownModel(name)) for name in sorted(names)]
    return json_response(answers.OpenAiModelList(data=shown))


@router.get("/models/{name:path}", **described(answers.OpenAiModel, needs="read", **OPENAI))
async def model(request: Request, name: str) -> Response:
    """Show a model, as OpenAI's API does."""
    manager = manager_of(request)
    return json_response(_shown(manager, await _known(manager, name)))


@router.post(
    "/chat/completions",
    **described(answers.ChatCompletion, needs="submit", body=requests.ChatRequest, **OPENAI),
)
async def chat(request: Request) -> Response:
    """Answer a conversation. With `stream` the answer comes as server-sent events. See
    [OpenAI's API](../openai.md) for what is supported.

    The header `X-Cold-Start: refuse` asks for 503 with `Retry-After` if the model is loaded nowhere; it is
    then being loaded. By default the request waits for the load. `X-Priority` is the priority of a task.

    If the client goes away before the answer is complete, the work ends."""
    asked = requests.read(await body_of(request), requests.ChatRequest)
    taken, head = await _submit(request, asked, requests.chat_parameters(asked), "chat")
    if asked.stream:
        made = chunks.ChatChunks(head, with_usage=asked.wants_usage)
        return TextStream(taken, made, with_usage=asked.wants_usage)
    return TextAnswer(taken, lambda found: answers.chat(head, found))


@router.post(
    "/completions",
    **described(answers.Completion, needs="submit", body=requests.CompletionRequest, **OPENAI),
)
async def complete(request: Request) -> Response:
    """Continue a text. All else is as for chat completions."""
    asked = requests.read(await body_of(request), requests.CompletionRequest)
    taken, head = await _submit(request, asked, requests.completion_parameters(asked), "completion")
    if asked.stream:
        made = chunks.CompletionChunks(head, with_usage=asked.wants_usage)
        return TextStream(taken, made, with_usage=asked.wants_usage)
    return TextAnswer(taken, lambda found: answers.completion(head, found))


@router.post(
    "/embeddings",
    **described(answers.EmbeddingList, needs="submit", body=requests.EmbeddingRequest, **OPENAI),
)
async def embed(request: Request) -> Response:
    """Turn texts into vectors. Headers are as for chat completions."""
    asked = requests.read(await body_of(request), requests.EmbeddingRequest)
    taken, head = await _submit(request, asked, requests.embedding_parameters(asked), "embedding")
    as_base64 = asked.encoding_format == "base64"

    def shown(result: bytes) -> answers.EmbeddingList:
        return answers.embeddings(head, answers.read(result, Embedded, asked.model), as_base64=as_base64)

    return WholeAnswer(taken, shown)


async def _submit(
    request: Request, asked: requests.ModelRequestBody, parameters: dict[str, Any], kind: str
) -> tuple[Asked, Head]:
    """Submit the task of a request, as any other task is submitted."""
    manager, state = manager_of(request), request.scope["state"]
    known = await _known(manager, asked.model)
    handler = known.declared.handler if known.declared else known.name
    if manager.overview.workers and handler not in manager.overview.task_types():
        raise errors.Unavailable(
            f"no worker that is here runs models of {handler!r}, such as {asked.model!r}; "
            "retry when one has joined",
            COME_BACK_S,
            code="no_worker",
        )
    wanted = task_schema.TaskRequest(
        task_type=handler,
        model_name=known.name,
        parameters=msgspec.Raw(msgspec.json.encode(parameters)),
        priority=_priority(header(request.scope, PRIORITY)),
        resources=task_schema.Resources(gpus=known.declared.gpus if known.declared else 1),
        labels={"openai": kind},
        result_ttl=min(KEPT_S, manager.settings.task_retention),
    )
    if _refuses_cold(header(request.scope, COLD_START)):
        await cold_start.demand_warm(manager, wanted, state["key"], state["correlation"])
    (taken,) = await submission.accept(manager, [wanted], state["key"], state["correlation"])
    state["object"] = taken.id
    stops = tuple(asked.stops) if isinstance(asked, requests.Generation) else ()
    return Asked(manager, state["key"], taken.id, asked.model, stops), Head(
        taken.id, int(time()), asked.model
    )


async def _known(manager: Manager, name: str) -> KnownModel:
    try:
        return await model_loading.known(manager, name)
    except errors.NotFound as error:
        raise problems.model_not_found(error) from error


def _shown(manager: Manager, known: KnownModel) -> answers.OpenAiModel:
    loaded = manager.overview.loaded_models()
    return answers.OpenAiModel(id=known.name, created=known.created_ms // 1000, loaded=known.name in loaded)


def _priority(given: str) -> str | int:
    return int(given) if given.isascii() and given.isdigit() and len(given) <= 3 else given or "normal"


def _refuses_cold(given: str) -> bool:
    if given.lower() not in ("", "wait", "refuse"):
        raise errors.Unprocessable(f"X-Cold-Start is {given[:40]!r}; give wait or refuse")
    return given.lower() == "refuse"
