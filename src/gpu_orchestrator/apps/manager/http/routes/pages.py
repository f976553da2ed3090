"""Routes for people with a browser, and for those who look around with curl: a page that says what this is,
the API reference, and the OpenAPI document. They need no key, because the documentation is public.

Links are relative, so that the pages work under `/api/v1` and behind a proxy.
"""

from functools import lru_cache

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response

from gpu_orchestrator import __version__
from gpu_orchestrator.apps.manager.http import html, openapi, reference
from gpu_orchestrator.apps.manager.http.responses import json_response
from gpu_orchestrator.apps.manager.http.route_auth import needs

router = APIRouter(tags=["pages"], include_in_schema=False)

HOME = f"""# gpu-orchestrator

This is the cluster manager of gpu-orchestrator {__version__}. It runs tasks on the GPUs of its workers.

- [API reference](docs): every route and type
- [OpenAPI document](openapi.json): the same for programs
- [Health](health): this server and its store
- [Metrics](metrics): for Prometheus; may need a key

## Get a key

Every other route needs a key. Ask the operator of this server for one. On the machine of the server itself,
`gpu-orchestrator key show` prints the one of that machine, and this makes one for somebody else:

    gpu-orchestrator key create ann --scope submit

Send a key as `Authorization: Bearer <key>`, or give it to the commands once with `gpu-orchestrator login`.
Run a first task, with the address of this page in place of `URL`:

    curl -H "Authorization: Bearer $API_KEY" "URL/tasks?wait=10" \\
      -d '{{"task_type": "echo", "parameters": {{"hello": "world"}}, "resources": {{"gpus": 0}}}}'
"""


@router.get("/", dependencies=needs("nothing"))
async def home(request: Request) -> Response:
    """Say what this server is, and where to go on."""
    return Response(_home(), headers=html.HEADERS)


@router.get("/docs", dependencies=needs("nothing"))
async def docs(request: Request) -> Response:
    """Show the API reference."""
    return Response(_docs(request.app), headers=html.HEADERS)


@router.get("/openapi.json", dependencies=needs("nothing"))
async def document(request: Request) -> Response:
    return json_response(_document(request.app))


@lru_cache(maxsize=1)
def _home() -> bytes:
    return html.page("gpu-orchestrator", HOME)


@lru_cache(maxsize=1)
def _document(app: FastAPI) -> dict[str, object]:
    return openapi.document(app)


@lru_cache(maxsize=1)
def _docs(app: FastAPI) -> bytes:
    return html.page("gpu-orchestrator: HTTP API", reference.markdown(_document(app)))
