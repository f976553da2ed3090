"""How long models take to load and their tasks to run, learnt from what was measured. Kept by `Models`."""

from dataclasses import dataclass, replace

LOAD_S, SERVICE_S = 10.0, 1.0
"""Of a model of which nothing is known yet."""
NEWEST = 0.3
"""How much the newest measurement counts."""
MOST_MODELS = 10_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """None as long as nobody measured or declared it. `mib`: what it takes on each device."""

    load_s: float | None = None
    service_s: float | None = None
    mib: int | None = None


NOTHING = Estimate()


class Estimates:
    """By model. The models that were measured longest ago are forgotten beyond `MOST_MODELS`."""

    def __init__(self) -> None:
        self._known: dict[str, Estimate] = {}

    def of(self, model: str) -> Estimate:
        return self._known.get(model, NOTHING)

    def load_s(self, model: str) -> float:
        found = self.of(model).load_s
        return LOAD_S if found is None else found

    def service_s(self, model: str) -> float:
        found = self.of(model).service_s
        return SERVICE_S if found is None else found

    def declare(self, model: str, estimate: Estimate) -> None:
        """Take what an operator wrote, where nothing was measured yet."""
        known = self.of(model)
        self._put(
            model,
            Estimate(
                estimate.load_s if known.load_s is None else known.load_s,
                estimate.service_s if known.service_s is None else known.service_s,
                estimate.mib if known.mib is None else known.mib,
            ),
        )

    def loaded(self, model: str, load_s: float, mib: int) -> None:
        """A worker measured a load. Each load has its own time; the size is that of the last one."""
        known = self.of(model)
        self._put(model, replace(known, load_s=_mixed(known.load_s, load_s), mib=mib or known.mib))

    def served(self, model: str, service_s: float) -> None:
        known = self.of(model)
        self._put(model, replace(known, service_s=_mixed(known.service_s, service_s)))

    def _put(self, model: str, estimate: Estimate) -> None:
        self._known.pop(model, None)
        self._known[model] = estimate
        if len(self._known) > MOST_MODELS:
            del self._known[next(iter(self._known))]


def _mixed(known: float | None, new: float) -> float:
    return new if known is None else known + (new - known) * NEWEST
