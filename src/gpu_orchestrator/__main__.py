"""`python -m gpu_orchestrator` is the same as `gpu-orchestrator`."""

from gpu_orchestrator.cli.main import main

main()
