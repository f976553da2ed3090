"""XIDs: the driver's numbers for device faults, received from it as events.

XIDs caused by a faulty program are ignored. After any other, the device is not trusted until it is reset,
which ends every process on it, this worker too: so a fault stays for the life of the process.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pynvml  # type: ignore[import-untyped]

from gpu_orchestrator.adapters.gpus.gpu import Reading

OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
MOST_AT_ONCE = 100


class Xids:
    def __init__(self) -> None:
        self._events: Any = None
        self._listening: set[str] = set()
        self.faults: dict[str, int] = {}

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
        xid = self.faults.get(board, 0)
        problem = f"the driver reported XID {xid}; reset the device and restart the worker"
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
            if uuid is not None and event.eventData not in OF_PROGRAMS:
                self.faults.setdefault(uuid, int(event.eventData))

    @staticmethod
    def _call(call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except pynvml.NVMLError:
            return None
