"""A real Kubernetes control plane on this machine: built from pinned Go modules, started in seconds.

For tests, benchmarks and the local demo. Nothing here knows of gpu_orchestrator.
"""
