"""Text that others wrote is cut to a bound, with a mark."""

from gpu_orchestrator.api.cutting import cut


def test_short_text_stays_as_it_is() -> None:
    assert cut("abc", 3) == "abc"


def test_long_text_is_cut_with_a_mark() -> None:
    shown = cut("x" * 1001, 100)
    assert (len(shown), shown.strip("x")) == (100, " [cut: 1,001 characters]")
