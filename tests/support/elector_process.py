"""One process of the election scenarios. It leads when it can, and logs each moment at which it led.

    python -m tests.support.elector_process KUBECONFIG NAMESPACE IDENTITY LOG LEASE_S RENEW_S RETRY_S

Lines of the log: `identity term moment`, with the moment from a clock that all local processes share.
"""

import asyncio
import os
import signal
import sys
from contextlib import suppress

from gpu_orchestrator.adapters.clock import elapsed_s
from gpu_orchestrator.adapters.kube.auth import config
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.adapters.kube.election import Elector, Lost, Times

TICK_S = 0.02


async def lead(kubeconfig: str, namespace: str, identity: str, log: str, *times: str) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with Client.open(config.load(kubeconfig)) as client:
        chosen = Times(*map(float, times))
        elector = Elector(client, "the-lease", namespace, identity=identity, times=chosen)
        for term in range(1000):
            with suppress(Lost):
                await elector.lead(lambda term=term: work(elector, out, term))  # type: ignore[misc]


async def work(elector: Elector, out: int, term: int) -> None:
    while True:
        moment = elapsed_s()
        if elector.leads_at(moment):
            os.write(out, f"{elector.identity} {term} {moment:.6f}\n".encode())
        await asyncio.sleep(TICK_S)


def main() -> None:
    with suppress(asyncio.CancelledError):
        asyncio.run(lead(*sys.argv[1:]))


if __name__ == "__main__":
    main()
