"""Amounts as people write them."""

import pytest

from gpu_orchestrator.api import units


@pytest.mark.parametrize(
    ("written", "mib"),
    [
        ("24GB", 24_576),
        ("24Gi", 24_576),
        ("1.5 GiB", 1_536),
        ("800m", 800),
        ("1B", 1),
        ("1048577 b", 2),
        ("0", 0),
        (0, 0),
    ],
)
def test_memory_is_parsed(written: str | int, mib: int) -> None:
    assert units.memory_mib(written) == mib


@pytest.mark.parametrize("written", ["", "much", "-1GB", "1XB", "1e3", "GB"])
def test_bad_amount_error_says_what_to_write(written: str) -> None:
    with pytest.raises(units.BadAmount, match="such as 24GB"):
        units.memory_mib(written)


@pytest.mark.parametrize("written", ["10", 10, " 10 ", "10.5", 10.5])
def test_number_without_a_unit_is_refused_with_what_to_write(written: str | float) -> None:
    number = str(written).strip()
    with pytest.raises(
        units.BadAmount, match=f"has no unit; write {number}GB or {number}MiB, or {number}B for"
    ):
        units.memory_mib(written)


@pytest.mark.parametrize("written", ["9" * 400 + "B", "99999999TB"])
def test_too_large_amount_is_refused(written: str) -> None:
    with pytest.raises(units.BadAmount, match="more memory than can be counted; at most 2147483647 MiB"):
        units.memory_mib(written)


@pytest.mark.parametrize(("mib", "shown"), [(24_576, "24GB"), (1_536, "1.5GB"), (512, "512MB"), (0, "0MB")])
def test_memory_is_formatted(mib: int, shown: str) -> None:
    assert units.show_memory(mib) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"),
        (3.21, "3.2s"),
        (59.94, "59.9s"),
        (59.96, "1m"),
        (60, "1m"),
        (1052.9, "17m 33s"),
        (3599.6, "1h"),
        (7500, "2h 5m"),
        (86_400, "1 day"),
        (100_800, "1 day 4h"),
        (604_800, "7 days"),
    ],
)
def test_seconds_are_formatted_for_people(seconds: float, shown: str) -> None:
    assert units.show_seconds(seconds) == shown


@pytest.mark.parametrize(
    ("written", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("7d", 604_800), ("0s", 0)]
)
def test_span_of_time_is_parsed(written: str, seconds: float) -> None:
    assert units.span_s(written) == seconds


@pytest.mark.parametrize("written", ["", "10", "m", "-1m", "10 m", "1w", "soon"])
def test_bad_span_of_time_says_what_to_write(written: str) -> None:
    with pytest.raises(units.BadAmount, match="such as 30s, 10m, 2h or 7d"):
        units.span_s(written)
