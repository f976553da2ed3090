"""The request and response bodies of the routes for models."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gpu_orchestrator.apps.manager.fleet.models import Backend
from gpu_orchestrator.apps.manager.schema import Answer, Body

ModelName = Annotated[str, Meta(min_length=1, max_length=200)]
WorkerName = Annotated[str, Meta(max_length=63)]
Options = Annotated[dict[str, Any], Meta(max_length=100)]


class ModelRequest(Body, frozen=True):
    """A model that tasks may name. `handler` is the task type that loads it: a class that workers were
    started with (`worker --model chat=my_models:Chat`). `memory`, such as "16GB", is what it takes on each
    of its devices; it is replaced by what workers measure, and without it the first task gets whole devices.
    `path` is where the weights are on the workers, absolute or in MODEL_CACHE_DIR. `options` are passed to
    the handler. `load_seconds` is an estimate, until a load was measured. `gpus` is how many GPUs a request
    of OpenAI's routes gets, 0 for a model in the memory of the machine; a task says it itself."""

    handler: Annotated[str, Meta(min_length=1, max_length=200)]
    memory: Annotated[str, Meta(max_length=40)] | int = ""
    path: Annotated[str, Meta(max_length=1000)] = ""
    options: Options = {}
    load_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    backend: Backend = "class"
    gpus: Annotated[int, Meta(ge=0, le=64)] = 1


class ModelCopy(Answer, frozen=True):
    """A copy of a model on one worker. `status` is `loading`, `loaded` or `in_use`; if a server backs it that
    has crashed or hangs, `restarting`. `memory_usage` is what it holds on
    all of its `devices` together; without devices it is in the memory of the machine. `server_restarts` is
    how often its server was started again, `server_error` why it was last."""

    model_name: str
    worker_id: str
    devices: list[int]
    status: str
    memory_usage: str
    memory_usage_bytes: int
    load_time: str
    load_seconds: float
    loaded_at: str | None
    last_used: str | None
    pinned: bool
    server_restarts: int = 0
    server_error: str = ""


class ModelInfo(Answer, frozen=True):
    """`memory` is what a task of the model reserves on each device: what was measured (`memory_measured`), or
    else what was declared; empty if neither is known. `declared` is false for a model that no administrator
    has declared: it is called as its handler. `pinned_on` are workers, `*` all of them."""

    name: str
    handler: str
    backend: str
    declared: bool
    memory: str
    memory_bytes: int
    memory_measured: bool
    load_time: str
    load_seconds: float | None
    path: str
    options: msgspec.Raw
    gpus: int
    pinned_on: list[str]
    copies: list[ModelCopy]
    created_at: str | None


class ModelPage(Answer, frozen=True):
    models: list[ModelInfo]
    total: int


class AssignmentPage(Answer, frozen=True):
    """What is loaded where, by model and worker."""

    assignments: list[ModelCopy]
    total: int


class AssignRequest(Body, frozen=True):
    """Load a model on a worker, or on the one that suits best. `pin` keeps it there: it is never evicted.
    `gpus` and `gpu_memory` are as in a task."""

    model_name: ModelName
    worker_id: WorkerName = ""
    pin: bool = False
    gpus: Annotated[int, Meta(ge=0, le=64)] = 1
    gpu_memory: Annotated[str, Meta(max_length=40)] | int = ""
    priority: Annotated[str, Meta(max_length=40)] | Annotated[int, Meta(ge=0, le=100)] = "high"


class Assigned(Answer, frozen=True):
    """`task_id` is a task that loads the model and does nothing more: its state, its reason and its log are
    those of the load."""

    model_name: str
    worker_id: str
    status: str
    task_id: str
    pinned: bool


class UnloadRequest(Body, frozen=True):
    """Unload a model from a worker, or from all of them. With `force` also where a task uses it, which is
    retried, and where it is pinned."""

    model_name: ModelName
    worker_id: WorkerName = ""
    force: bool = False


class Unloaded(Answer, frozen=True):
    model_name: str
    workers: list[str]
    status: str


class PinRequest(Body, frozen=True):
    """Pin a model on a worker, or on all of them (`*`): a copy that is or will be loaded there is never
    evicted."""

    model_name: ModelName
    worker_id: WorkerName = "*"


class Pinned(Answer, frozen=True):
    model_name: str
    pinned_on: list[str]


class ModelRemoved(Answer, frozen=True):
    name: str
    status: str
