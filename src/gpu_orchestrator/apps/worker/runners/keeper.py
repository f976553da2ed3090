"""The parent of one runner, started by `runner_handle` as a process of its own: see `adapters/keeper`.

agent ──lifeline──> keeper ──fork──> runner ──> its children
  └───────socket pair and bell─────────┘
"""

import sys

from gpu_orchestrator.adapters import keeper


def main() -> None:
    lifeline, channel, bell, user = [*sys.argv[1:], ""][:4]
    ends = int(channel), int(bell)
    keeper.end_as(keeper.keep(int(lifeline), ends, user, lambda: _run(*ends)))


def _run(channel: int, bell: int) -> None:
    from gpu_orchestrator.apps.worker.runners import runner

    runner.main(channel, bell)


if __name__ == "__main__":
    main()
