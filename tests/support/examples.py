"""How many examples Hypothesis tries of a property: `@cases(100)` in `make test`, 25 times as many in
`make accept`."""

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

factor = 1


def cases(count: int) -> Callable[[Any], Any]:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=count * factor, suppress_health_check=checks)
