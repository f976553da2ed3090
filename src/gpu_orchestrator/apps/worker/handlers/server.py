"""A model that a server holds which the worker starts: vLLM, llama.cpp, Ollama, or another with OpenAI's API.

Operators allow it: `worker --model server=gpu_orchestrator.apps.worker.handlers.server:Server`. Tasks are
those of `text_generation` and `embedding`; `openai_client` asks the server.
"""

from typing import Any

from gpu_orchestrator.apps.worker.handlers import openai_client
from gpu_orchestrator.apps.worker.handlers.openai_client import Upstream
from gpu_orchestrator.apps.worker.handlers.server_process import HOST
from gpu_orchestrator.apps.worker.handlers.server_watch import ServerWatch
from gpu_orchestrator.apps.worker.task import Model, Task, Temporary


class Server:
    def load(self, model: Model) -> None:
        self.watch = ServerWatch(model, model.tell)
        self.watch.start()

    @property
    def ends_within_s(self) -> float:
        return self.watch.ends_within_s

    def processes(self) -> tuple[int, ...]:
        """Return the server, which may be another than after the load."""
        return self.watch.pids()

    def close(self, *, drains: bool) -> None:
        self.watch.close(drains=drains)

    def run(self, task: Task) -> dict[str, Any]:
        asked = task.parameters(dict[str, Any])
        with self.watch.request(task.check) as port:
            try:
                return openai_client.answer(task, asked, Upstream(f"http://{HOST}:{port}", self.watch.served))
            except openai_client.Broken as error:
                task.check()
                how = self.watch.ended() or f"did not answer: {error}"
                raise Temporary(f"the server of model {self.watch.served!r} {how}") from error
