"""Number devices: a device keeps its number for the life of the process, and no two have the same."""


class Numbers:
    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self._taken: set[int] = set()

    def of(self, uuid: str, wanted: int) -> int:
        """Return the device's number: at first `wanted`, or the next one that is free."""
        if uuid not in self._of:
            while wanted in self._taken:
                wanted += 1
            self._of[uuid] = wanted
            self._taken.add(wanted)
        return self._of[uuid]
