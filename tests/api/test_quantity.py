"""Quantities are read exactly, rounded up, and refused with a reason."""

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.api import quantity
from gpu_orchestrator.api.quantity import BadQuantity
from gpu_orchestrator.core.limits import MOST_AMOUNT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("2", 2),
        ("+2", 2),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("100m", Fraction(1, 10)),
        ("250u", Fraction(1, 4000)),
        ("1n", Fraction(1, 10**9)),
        ("1k", 1000),
        ("1M", 10**6),
        ("12E", 12 * 10**18),
        ("16Gi", 16 * 2**30),
        ("1.5Ki", 1536),
        ("1Ei", 2**60),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1e-3", Fraction(1, 1000)),
        ("1.5e+2", 150),
    ],
)
def test_parses(text: str, expected: Fraction) -> None:
    assert quantity.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a quantity"),
        (".", "is not a quantity"),
        ("Gi", "is not a quantity"),
        (" 1", "is not a quantity"),
        ("1 Gi", "is not a quantity"),
        ("1Gi\n", "is not a quantity"),
        ("1,5", "is not a quantity"),
        ("0x10", "is not a quantity"),
        ("1K", "unknown unit 'K'"),
        ("1gi", "unknown unit 'gi'"),
        ("1e", "unknown unit 'e'"),
        ("-1", "is negative"),
        ("-1Gi", "is negative"),
        ("1e99999999", "beyond what can be counted"),
        ("١", "is not a quantity"),
    ],
)
def test_refuses(text: str, why: str) -> None:
    with pytest.raises(BadQuantity, match=re.escape(why)):
        quantity.parse(text)


@pytest.mark.parametrize(
    ("text", "whole", "milli"),
    [
        ("100m", 1, 100),
        ("1.0001", 2, 1001),
        ("2", 2, 2000),
        ("1n", 1, 1),
        ("0", 0, 0),
        ("100E", MOST_AMOUNT, MOST_AMOUNT),
        ("9223372036854775807", MOST_AMOUNT, MOST_AMOUNT),
        (str(MOST_AMOUNT - 1), MOST_AMOUNT - 1, MOST_AMOUNT),
    ],
)
def test_rounds_up_and_caps_at_most_amount(text: str, whole: int, milli: int) -> None:
    assert (quantity.whole(text), quantity.milli(text)) == (whole, milli)


@given(st.integers(0, 2**63), st.integers(0, 2**63))
def test_sums_are_the_same_in_every_unit(one: int, other: int) -> None:
    """Nothing is lost on the way, as it would be with floats."""
    assert quantity.parse(f"{one}n") + quantity.parse(f"{other}n") == quantity.parse(f"{one + other}n")
    assert quantity.parse(f"{one}Ki") == one * quantity.parse("1Ki")


@pytest.mark.parametrize("text", ["9" * 5000, "1e" + "9" * 5000, "0." + "1" * 5000, "9" * 65])
def test_long_number_is_a_bad_quantity(text: str) -> None:
    with pytest.raises(quantity.BadQuantity) as refused:
        quantity.whole(text)
    assert len(str(refused.value)) < 200
