"""Run the operator with shorter waits than it ships with, so that a scenario need not wait them out.

    python -m tests.support.hurried_operator '{"podless_s": 6}' operator --kubeconfig=...

`podless_s`: how long a Job may be without a pod. `times`: lease, renewal and retry of the election.
"""

import json
import sys
from functools import partial

from gpu_orchestrator.adapters.kube import election
from gpu_orchestrator.apps.operator.planning import stuck
from gpu_orchestrator.cli import main as program


def hurry(podless_s: float = stuck.PODLESS_S, times: tuple[float, ...] = ()) -> None:
    stuck.PODLESS_S = podless_s
    election.Times = partial(election.Times, *times)  # type: ignore[misc, assignment]


def main() -> None:
    hurry(**json.loads(sys.argv.pop(1)))
    program.main()


if __name__ == "__main__":
    main()
