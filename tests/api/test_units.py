"""Amounts as people write them."""

import pytest

from gpu_orchestrator.api import units


@pytest.mark.parametrize(
    ("written", "mib"),
    [("24GB", 24_576), ("24Gi", 24_576), ("1.5 GiB", 1_536), ("800m", 800), (1, 1), (1_048_577, 2), ("0", 0)],
)
def test_memory_is_parsed(written: str | int, mib: int) -> None:
    assert units.memory_mib(written) == mib


@pytest.mark.parametrize("written", ["", "much", "-1GB", "1XB", "1e3", "GB"])
def test_bad_amount_error_says_what_to_write(written: str) -> None:
    with pytest.raises(units.BadAmount, match="such as 24GB"):
        units.memory_mib(written)


@pytest.mark.parametrize("written", ["9" * 400, "99999999TB"])
def test_too_large_amount_is_refused(written: str) -> None:
    with pytest.raises(units.BadAmount, match="more memory than can be counted; at most 2147483647 MiB"):
        units.memory_mib(written)


@pytest.mark.parametrize(("mib", "shown"), [(24_576, "24GB"), (1_536, "1.5GB"), (512, "512MB"), (0, "0MB")])
def test_memory_is_formatted(mib: int, shown: str) -> None:
    assert units.show_memory(mib) == shown
