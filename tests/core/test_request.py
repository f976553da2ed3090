"""One condition on one label, as Kubernetes means it."""

import pytest

from gpu_orchestrator.core.request import Expression

LARGE = str(2**63)


@pytest.mark.parametrize(
    ("operator", "values", "holds_for", "not_for"),
    [
        ("In", ("a", "b"), ["a", "b"], ["c", None]),
        ("NotIn", ("a",), ["b", None], ["a"]),
        ("Exists", (), ["", "a"], [None]),
        ("DoesNotExist", (), [None], ["", "a"]),
        ("Gt", ("5",), ["6", "0010"], ["5", "4", "x", "6.5", "", LARGE, None]),
        ("Lt", ("5",), ["4", "-1"], ["5", "6", "x", "", f"-{LARGE}0", None]),
        ("Gt", (), [], ["6", None]),
        ("Gt", (f"-{LARGE}0",), [], ["6"]),
        ("OfANewerServer", ("5",), [], ["4", "5", "6", None]),
    ],
)
def test_condition_holds(
    operator: str, values: tuple[str, ...], holds_for: list[str | None], not_for: list[str | None]
) -> None:
    condition = Expression("key", operator, values)  # type: ignore[arg-type]
    assert [value for value in (*holds_for, *not_for) if condition.holds(value)] == holds_for
