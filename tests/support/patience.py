"""How long tests wait for an expected state. Far more than it takes, so that a busy machine fails no test."""

PATIENCE_S = 60.0


def pause_s(looked_s: float, least_s: float) -> float:
    """Return how long to wait before the next look, if this one took `looked_s`: three times that, at most a
    second. Looks that list hundreds of objects would otherwise take the CPU that the awaited work needs."""
    return max(least_s, min(3 * looked_s, 1.0))
