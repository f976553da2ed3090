"""A part of a log as one text: positions, gaps and cuts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.adapters.store.logs import LogEntry, LogPart, LogText, text_of


def part(*entries: tuple[int, str], end: int = 0) -> LogPart:
    return LogPart(
        "running",
        "",
        1,
        end or (entries[-1][0] if entries else 0),
        tuple(LogEntry(*each) for each in entries),
    )


@pytest.mark.parametrize(
    ("given_part", "after", "most", "expected"),
    [
        pytest.param(part(), 0, 100, LogText(0, 0, 0, ""), id="empty"),
        pytest.param(part((4, "one\n"), (8, "two\n")), 0, 100, LogText(0, 8, 0, "one\ntwo\n"), id="whole"),
        pytest.param(
            part((4, "one\n"), (8, "two\n")), 2, 100, LogText(2, 8, 0, "e\ntwo\n"), id="from a position"
        ),
        pytest.param(
            part((24, "one\n")), 0, 100, LogText(20, 24, 20, "one\n"), id="the beginning is missing"
        ),
        pytest.param(part((24, "one\n")), 7, 100, LogText(20, 24, 13, "one\n"), id="what follows is missing"),
        pytest.param(
            part((4, "one\n"), (1008, "two\n")),
            0,
            100,
            LogText(0, 1008, 0, "one\n[1,000 bytes are not kept]\ntwo\n"),
            id="the middle is missing",
        ),
        pytest.param(
            part((2, "on"), (1006, "two\n")),
            0,
            100,
            LogText(0, 1006, 0, "on\n[1,000 bytes are not kept]\ntwo\n"),
            id="the rest of a line is missing",
        ),
        pytest.param(part((4, "one\n"), (8, "two\n")), 0, 6, LogText(0, 6, 0, "one\ntw"), id="at most"),
        pytest.param(part((6, "€€")), 0, 5, LogText(0, 3, 0, "€"), id="whole characters"),
        pytest.param(part(end=50), 70, 100, LogText(50, 50, 0, ""), id="past the end"),
    ],
)
def test_part_of_a_log_is_one_text(given_part: LogPart, after: int, most: int, expected: LogText) -> None:
    assert text_of(given_part, after, most) == expected


@given(st.lists(st.text(st.sampled_from("ab€\n"), min_size=1, max_size=20), max_size=10), st.integers(4, 30))
def test_pages_are_the_whole_log(texts: list[str], most: int) -> None:
    entries, end = [], 0
    for text in texts:
        end += len(text.encode())
        entries.append((end, text))
    read, after = "", 0
    while after < end:
        page = text_of(part(*[each for each in entries if each[0] > after], end=end), after, most)
        assert page.offset == after
        assert len(page.text.encode()) <= most
        read, after = read + page.text, page.next
    assert read == "".join(texts)
