"""Text of an attempt becomes lines of a log, as a terminal shows them, in pieces that fit together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.apps.worker import transcript
from gpu_orchestrator.apps.worker.transcript import Lines, Pace, Piece, Transcript

ENOUGH = 1 << 20


@pytest.mark.parametrize(
    ("written", "lines", "newest"),
    [
        pytest.param(["one\ntwo\n"], "one\ntwo\n", "two", id="whole lines"),
        pytest.param(["on", "e\ntw", "o"], "one\n", "two", id="parts of lines"),
        pytest.param(["\n\n"], "\n\n", "", id="blank lines are kept, but are no progress"),
        pytest.param(["done\n", "\n"], "done\n\n", "done", id="newest line is not blank"),
        pytest.param(["\r 1%", "\r 2%", "\r 3%"], "", "3%", id="progress bar"),
        pytest.param(["\r 1%\r100%", "\nnext\n"], "100%\nnext\n", "next", id="progress bar that ends"),
        pytest.param(["1%\r", "2%\r"], "", "2%", id="carriage return at the end"),
        pytest.param(["1%\r", "2%\r", "\n"], "2%\n", "2%", id="carriage return, then newline"),
        pytest.param(["a\r\nb\r\n"], "a\nb\n", "b", id="lines of another system"),
        pytest.param(["a\r", "\nb"], "a\n", "b", id="line ending that was split"),
        pytest.param(["gone\rkept\n"], "kept\n", "kept", id="overwritten"),
        pytest.param(["a\x00b\n"], "a\x00b\n", "a\x00b", id="control characters"),
    ],
)
def test_lines_are_what_a_terminal_shows(written: list[str], lines: str, newest: str) -> None:
    cut = Lines()
    assert "".join(cut.feed(text) for text in written) == lines
    assert cut.newest == newest


def test_last_line_without_newline_is_complete_at_the_end() -> None:
    lines = Lines()
    assert lines.feed("50%\r100%") == ""
    assert (lines.end(), lines.end()) == ("100%\n", "")


def test_text_without_newline_is_passed_on_in_parts() -> None:
    lines = Lines()
    parts = [lines.feed("x" * 1000) for _ in range(100)] + [lines.end()]
    assert "".join(parts) == "x" * 100_000 + "\n"
    assert max(map(len, parts)) <= transcript.LONGEST_PARTIAL + 1000


texts = st.lists(st.text(st.sampled_from("ab \n\r€"), max_size=12), max_size=12)


@given(texts)
def test_lines_do_not_depend_on_where_text_is_split(parts: list[str]) -> None:
    split, whole = Lines(), Lines()
    cut = "".join(split.feed(part) for part in parts) + split.end()
    assert cut == whole.feed("".join(parts)) + whole.end()


def written(*parts: str, most_bytes: int = ENOUGH) -> Transcript:
    made = Transcript()
    for part in parts:
        made.write(part, most_bytes)
    return made


def taken(made: Transcript, most_bytes: int = ENOUGH) -> list[Piece]:
    pieces = []
    while (piece := made.take(most_bytes)) is not None:
        pieces.append(piece)
    return pieces


@pytest.mark.parametrize(
    ("most_bytes", "pieces"),
    [
        pytest.param(100, [Piece(0, "one\ntwo\nthree\n")], id="all at once"),
        pytest.param(9, [Piece(0, "one\ntwo\n"), Piece(8, "three\n")], id="whole lines"),
        pytest.param(
            3,
            [Piece(0, "one"), Piece(3, "\n"), Piece(4, "two"), Piece(7, "\n"), Piece(8, "thr")],
            id="parts of lines that are longer",
        ),
    ],
)
def test_pieces_are_whole_lines_if_possible(most_bytes: int, pieces: list[Piece]) -> None:
    assert taken(written("one\ntwo\nthree\n"), most_bytes)[: len(pieces)] == pieces


def test_oldest_lines_are_dropped_and_counted() -> None:
    lines = [f"line {number}\n" for number in range(10)]
    for parts in (lines, ["".join(lines)]):
        assert taken(written(*parts, most_bytes=20)) == [Piece(56, "line 8\nline 9\n")]


def test_characters_are_not_cut() -> None:
    made = written("€" * 100 + "\n", most_bytes=100)
    (piece,) = taken(made)
    assert piece.text == "€" * 33 + "\n"
    assert piece.at == 301 - 100


def test_lines_of_two_sources_do_not_mix() -> None:
    made = Transcript()
    for text, source in (("py", ""), ("ra", "raw"), ("thon\n", ""), ("w\n", "raw")):
        made.write(text, ENOUGH, source)
    assert [piece.text for piece in taken(made)] == ["python\nraw\n"]


def test_progress_is_the_newest_line_once() -> None:
    made = written("a\n")
    assert (made.progress(), made.progress()) == ("a", "")
    made.write("\r 5%", ENOUGH)
    assert made.progress() == "5%"
    made.write("x" * 5000, ENOUGH)
    assert len(made.progress()) == transcript.LONGEST_PROGRESS


def test_rewound_pieces_are_sent_again_at_their_position() -> None:
    made = written("one\n", "two\n")
    first = taken(made, 4)
    made.write("three\n", ENOUGH)
    made.rewind()
    assert first == [Piece(0, "one\n"), Piece(4, "two\n")]
    assert taken(made) == [Piece(0, "one\ntwo\nthree\n")]


def test_only_the_last_part_is_sent_again() -> None:
    line = "x" * 1023 + "\n"
    made = written(*[line] * 200)
    taken(made, 16 << 10)
    made.rewind()
    (again,) = taken(made)
    assert again.at + len(again.text) == 200 << 10
    assert transcript.SENT_KEPT * 3 / 4 < len(again.text) <= transcript.SENT_KEPT


actions = st.lists(
    st.one_of(
        st.text(st.sampled_from("ab\n\r€"), max_size=40),
        st.integers(4, 30).map(lambda most: ("take", most)),
        st.just(("rewind", 0)),
    ),
    max_size=30,
)


@given(actions, st.integers(4, 60))
def test_every_piece_is_at_its_position(steps: list[str | tuple[str, int]], most_bytes: int) -> None:
    """Whatever is taken, dropped and sent again: each piece is that part of the whole log, and the log
    ends with the last one."""
    whole, made = Lines(), Transcript()
    log, pieces = "", []
    for step in steps:
        match step:
            case str():
                log += whole.feed(step)
                made.write(step, most_bytes)
            case ("take", most):
                pieces += [piece] if (piece := made.take(most)) else []
            case _:
                made.rewind()
    log += whole.end()
    made.end(most_bytes)
    pieces += taken(made)
    data = log.encode()
    for piece in pieces:
        text = piece.text.encode()
        assert data[piece.at : piece.at + len(text)] == text
    if data:
        assert pieces[-1].at + len(pieces[-1].text.encode()) == len(data)


def test_pace_allows_a_burst_and_then_a_rate() -> None:
    pace = Pace()
    assert pace.allows(100.0) == transcript.BURST
    pace.spend(transcript.BURST)
    assert pace.allows(100.0) == 0
    assert pace.allows(100.5) == transcript.BYTES_PER_S // 2
    assert pace.allows(1e6) == transcript.BURST
