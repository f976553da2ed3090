"""XIDs: the driver's numbers for device faults, received from it as events.

XIDs caused by a faulty program are ignored. Some others pass by themselves: they count until none has come
for a while. After all the rest the device is not trusted until it is reset, which no process on it survives,
not even this one: such a fault stays for the life of the process.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pynvml  # type: ignore[import-untyped]

from gpu_orchestrator.adapters.clock import elapsed_s
from gpu_orchestrator.adapters.gpus.gpu import Reading

OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
PASSING = frozenset({32, 38, 42, 63, 69, 74, 92, 94, 121, 137})
"""Errors of a link, of a queue or of memory that were contained or corrected."""
PASSING_S = 600.0
MOST_AT_ONCE = 100


class Xids:
    def __init__(self, clock: Callable[[], float] = elapsed_s) -> None:
        self._events: Any = None
        self._listening: set[str] = set()
        self._clock = clock
        self.faults: dict[str, int] = {}
        self._passing: dict[str, tuple[int, float]] = {}
        """The last XID of a GPU that passes by itself, and when it came."""

    def listen(self, uuids: Collection[str]) -> None:
        """Listen to these GPUs too. A driver without events, and a GPU that does not answer, are ignored."""
        if self._events is None:
            self._events = self._call(pynvml.nvmlEventSetCreate)
        for uuid in () if self._events is None else set(uuids) - self._listening:
            self._call(self._register, uuid)

    def _register(self, uuid: str) -> None:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
        self._listening.add(uuid)

    def marked(self, reading: Reading, board: str) -> Reading:
        """Return the reading, with the fault of its GPU `board` if there was one."""
        self._receive()
        xid, advice = self.faults.get(board, 0), "reset the device, and restart this process"
        if not xid:
            xid, at = self._passing.get(board, (0, 0.0))
            xid, advice = (
                (xid if self._clock() - at < PASSING_S else 0),
                "it passes if it does not come again",
            )
        problem = f"the driver reported XID {xid}; {advice}"
        return replace(reading, xid=xid, problem=reading.problem or problem) if xid else reading

    def close(self) -> None:
        """Free the event set, which belongs to an open library. Keep the faults received so far."""
        if self._events is not None:
            self._receive()
            self._call(pynvml.nvmlEventSetFree, self._events)
        self._events = None
        self._listening.clear()

    def _receive(self) -> None:
        for _ in range(MOST_AT_ONCE if self._listening else 0):
            event = self._call(pynvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:
                return
            uuid = self._call(pynvml.nvmlDeviceGetUUID, event.device)
            xid = int(event.eventData)
            if uuid is None or xid in OF_PROGRAMS:
                continue
            if xid in PASSING:
                self._passing[uuid] = (xid, self._clock())
            else:
                self.faults.setdefault(uuid, xid)

    @staticmethod
    def _call(call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except pynvml.NVMLError:
            return None
