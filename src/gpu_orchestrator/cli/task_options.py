"""Options that say what a task needs and how it is run, for `task submit` and `schedule add`."""

from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from gpu_orchestrator.cli import output
from gpu_orchestrator.cli.filters import labels
from gpu_orchestrator.cli.options import whole


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The words of the HTTP API, as options."""

    memory: Annotated[
        str,
        Parameter(
            name="--memory",
            metavar="AMOUNT",
            help="GPU memory to reserve on each device, such as 10GB; whole devices if not given.",
        ),
    ] = ""
    gpus: Annotated[
        int, Parameter(name="--gpus", metavar="N", converter=whole, help="How many devices; 0 for none.")
    ] = 1
    vendor: Annotated[str, Parameter(name="--vendor", help="Only devices of this vendor.")] = ""
    priority: Annotated[
        str, Parameter(name="--priority", help="low, normal, high, critical, or 0 to 100.")
    ] = "normal"
    timeout: Annotated[
        str,
        Parameter(name="--timeout", metavar="TIME", help="Stop it after this time: seconds, or such as 30m."),
    ] = ""
    retries: Annotated[
        int | None,
        Parameter(name="--retries", metavar="N", converter=whole, help="How often it is retried."),
    ] = None
    model: Annotated[str, Parameter(name="--model", help="The model it needs.")] = ""
    label: Annotated[
        tuple[str, ...],
        Parameter(
            name="--label",
            metavar="KEY=VALUE",
            help="A label for lists and filters. May be repeated.",
        ),
    ] = ()
    worker_label: Annotated[
        tuple[str, ...],
        Parameter(
            name="--worker-label",
            metavar="KEY=VALUE",
            help="Only workers that were started with this label. May be repeated.",
        ),
    ] = ()
    pool: Annotated[str, Parameter(name="--pool", metavar="NAME", help="Only workers of this pool.")] = ""
    callback_url: Annotated[
        str,
        Parameter(
            name="--callback-url",
            metavar="URL",
            help="Where the server sends the task when it has ended.",
        ),
    ] = ""

    def body(self, task_type: str, parameters: tuple[str, ...]) -> dict[str, Any]:
        """Return the request of the HTTP API."""
        from gpu_orchestrator.cli.parameters import read, seconds

        if self.memory and self.gpus == 0:
            output.fail(
                f"--memory {self.memory} with --gpus 0: memory is reserved on GPUs; "
                "leave --memory out, or ask for at least one GPU"
            )
        text = self.priority
        body: dict[str, Any] = {
            "task_type": task_type,
            "parameters": read(parameters),
            "priority": int(text) if text.isdecimal() and text.isascii() else text,
            "resources": {
                "gpus": self.gpus,
                "gpu_memory": self.memory,
                "vendor": self.vendor,
                **self._where(),
            },
            "model_name": self.model,
            "labels": labels(self.label),
            "callback_url": self.callback_url,
        }
        if self.timeout:
            body["timeout"] = seconds(self.timeout, "--timeout")
        if self.retries is not None:
            body["max_retries"] = self.retries
        return body

    def _where(self) -> dict[str, Any]:
        """Return which workers may run it; empty if any may, which a server of an older version takes too."""
        chosen = {"labels": labels(self.worker_label, "--worker-label"), "pool": self.pool}
        return {name: value for name, value in chosen.items() if value}


USUAL = TaskOptions()
