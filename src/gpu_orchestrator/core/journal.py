"""Which rows changed, in order, so that a cached answer can be updated instead of computed again.

A reader keeps the mark up to which it has read. Old notes are dropped; a reader with an older mark gets None
and must read everything.
"""

KEEP = 4096


class Journal:
    def __init__(self) -> None:
        self._notes: list[int] = []
        self._first = 0

    def copy(self) -> "Journal":
        twin = Journal()
        twin._notes, twin._first = self._notes.copy(), self._first
        return twin

    @property
    def mark(self) -> int:
        return self._first + len(self._notes)

    def note(self, row: int) -> None:
        self._notes.append(row)
        if len(self._notes) >= 2 * KEEP:
            del self._notes[:KEEP]
            self._first += KEEP

    def since(self, mark: int) -> list[int] | None:
        """Return the rows noted after the mark, each once; None if the mark is too old."""
        if mark < self._first:
            return None
        return list(dict.fromkeys(self._notes[mark - self._first :]))
