"""Run an agent until a signal asks it to leave. Called by `gpu-orchestrator worker`."""

import asyncio
import signal

from gpu_orchestrator.adapters.gpus.gpu import Gpus
from gpu_orchestrator.apps.worker.agent import Agent
from gpu_orchestrator.apps.worker.settings import Settings


async def run(settings: Settings, gpus: Gpus) -> None:
    """Run the agent. The first SIGTERM or SIGINT drains it, the second ends it at once."""
    agent = Agent(settings, gpus)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.leave)
    await agent.run()
