"""Run gpu-orchestrator with every request to the API server sent by aiohttp, as a contender in `bind.py`."""

from gpu_orchestrator.adapters.kube.transport import pooled
from gpu_orchestrator.adapters.kube.transport.base import HttpTransport


def main() -> None:
    pooled.PooledTransport = HttpTransport  # type: ignore[assignment,misc]  # before `client` imports it
    from gpu_orchestrator.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
