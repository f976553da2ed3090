"""Shares of NVIDIA GPUs that hold: runs NVIDIA's MPS daemons, one for each owner and set of devices.

A process that uses a device through such a daemon gets no more device memory than its limit. The limit is
what its task reserved; the CUDA context, about half a gigabyte on large GPUs, is part of it. A fault of one
process ends the work of all processes of the same daemon, so owners never share one. `runner_pool` calls
this; `adapters/mps` has the daemon itself.

MPS prevents accidents, not attacks: a process that drops the variables of its environment talks to the device
directly.
"""

import asyncio
from collections.abc import Collection, Mapping

from gpu_orchestrator.adapters import keeper
from gpu_orchestrator.adapters.mps import PROGRAM, MpsDaemon, MpsFailed, which
from gpu_orchestrator.adapters.process_rights import User
from gpu_orchestrator.api import mps
from gpu_orchestrator.apps.worker import environment
from gpu_orchestrator.apps.worker.attempt import Devices


def find_program() -> str:
    """Return the path of NVIDIA's control program; raise `MpsFailed` if this machine does not have it."""
    if not (found := which()):
        raise MpsFailed(
            f"GPU_SHARING=mps needs {PROGRAM}, which comes with NVIDIA's driver; it is not on PATH. "
            "Install it, or set GPU_SHARING=accounted"
        )
    return found


class MpsDaemons:
    """The daemons of this worker. `environment_of` starts one where there is none, or where it has ended."""

    def __init__(self, program: str, user: User | None = None) -> None:
        self._program, self._user = program, user
        self._daemons: dict[tuple[str, Devices], MpsDaemon] = {}
        self._starting = asyncio.Lock()

    async def check(self) -> None:
        """Start and end one daemon; raise `MpsFailed` if it does not start on this machine."""
        daemon = self._daemon({})
        await daemon.start()
        await daemon.end()

    async def environment_of(
        self, owner: str, devices: Devices, visible: Mapping[str, str], limit_mib: int
    ) -> dict[str, str]:
        """Return the variables with which a process is a client of the owner's daemon for these devices."""
        async with self._starting:
            daemon = self._daemons.get((owner, devices))
            if daemon is None or not daemon.is_running:
                if daemon is not None:
                    await daemon.end()
                daemon = self._daemons[owner, devices] = self._daemon(visible)
                await daemon.start()
        return daemon.variables() | {environment.MEMORY_LIMIT: mps.limits(len(devices), limit_mib)}

    def _daemon(self, visible: Mapping[str, str]) -> MpsDaemon:
        return MpsDaemon(self._program, environment.without_secrets() | dict(visible), self._user)

    def pids(self) -> set[int]:
        """Return the ids of all processes of the daemons: what they hold on a device is this worker's."""
        running = [daemon.keeper_pid for daemon in self._daemons.values() if daemon.is_running]
        return {pid for each in running for pid in (each, *keeper.descendants(each))}

    def keep_only(self, used: Collection[tuple[str, Devices]]) -> None:
        """End the daemons that no runner uses any more."""
        for key in [key for key in self._daemons if key not in used]:
            self._daemons.pop(key).kill()

    def kill(self) -> None:
        self.keep_only(())
