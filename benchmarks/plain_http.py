"""Run gpu-orchestrator with every request to the API server sent by aiohttp, to compare. For `bind.py`."""

from gpu_orchestrator.adapters.kube import lean
from gpu_orchestrator.adapters.kube.transport import HttpTransport


def main() -> None:
    lean.LeanTransport = HttpTransport  # type: ignore[assignment,misc]  # before `client` imports it
    from gpu_orchestrator.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
