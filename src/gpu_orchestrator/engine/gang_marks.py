"""Which members of gangs are to be marked: their gang has begun, and the next scheduler must know it.

A few members carry the mark, on different nodes if there are such; when one of them ends, another one gets
it.
Kept by `gangs`; the caller marks them.
"""

from gpu_orchestrator.engine.gang_members import Members

MARKED = 4
"""Members of a gang that carry the mark."""


class GangMarks:
    def __init__(self) -> None:
        self._incomplete: dict[str, Members] = {}

    def look_at(self, gang: Members) -> None:
        """The gang has begun, or a member that carried the mark has ended. One member alone makes a gang of
        one, which needs no mark."""
        if gang.terms.least > 1 and gang.has_begun:
            self._incomplete[gang.terms.name] = gang

    def forget(self, gang: Members) -> None:
        self._incomplete.pop(gang.terms.name, None)

    def due(self) -> list[str]:
        """Return the members to mark now."""
        due: list[str] = []
        for gang in list(self._incomplete.values()):
            if missing := _missing(gang):
                due += missing
            else:
                self.forget(gang)
        return due


def _missing(gang: Members) -> list[str]:
    running = {key: node for key, node in gang.started.items() if node and key in gang.confirmed}
    apart = dict.fromkeys({node: key for key, node in running.items()}.values())
    candidates = [key for key in (apart | dict.fromkeys(running)) if key not in gang.marked]
    return candidates[: max(MARKED - len(gang.marked), 0)]
