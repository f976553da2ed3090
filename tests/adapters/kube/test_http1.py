"""Answers come out complete, however the network splits them; malformed answers are refused."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.adapters.kube.errors import BadAnswer
from gpu_orchestrator.adapters.kube.transport.base import Answer
from gpu_orchestrator.adapters.kube.transport.http1 import Parser

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ANSWERS = {
    "length": OK + b"Content-Length: 11\r\n\r\n" + b"hello\r\nyou\n",
    "empty": OK + b"Content-Length: 0\r\n\r\n",
    "chunks": OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"6\r\nhello\r\r\n5;x=y\r\n\nyou\n\r\n0\r\n\r\n",
    "trailer": OK + b"transfer-encoding: chunked\r\n\r\n" + b"B\r\nhello\r\nyou\n\r\n0\r\nA: b\r\n\r\n",
    "announced": b"HTTP/1.1 100 Continue\r\nContent-Length: 3\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n"
    + OK
    + b"Content-Length: 11\r\n\r\nhello\r\nyou\n",
}
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def parse(raw: bytes, cuts: list[int], max_bytes: int = 100) -> tuple[list[Answer], Parser]:
    parser = Parser(max_bytes)
    places = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    found = [parser.feed(raw[start:end]) for start, end in pairwise(places) if start < end]
    return [answer for answer in found if answer is not None], parser


@given(name=st.sampled_from(sorted(ANSWERS)), cuts=st.lists(st.integers(0, 300), max_size=30))
def test_answer_split_anywhere_is_parsed(name: str, cuts: list[int]) -> None:
    answers, parser = parse(ANSWERS[name], cuts)
    (answer,) = answers
    assert answer.status == 200
    assert answer.body == (b"" if name == "empty" else b"hello\r\nyou\n")
    assert parser.stays_open


def test_answer_without_a_length_ends_with_the_connection() -> None:
    answers, parser = parse(OK + b"\r\nhello", [3, 60])
    assert answers == []
    assert not parser.stays_open
    ended = parser.end()
    assert ended is not None
    assert ended.body == b"hello"


@pytest.mark.parametrize("name", ["length", "chunks"])
def test_connection_end_inside_the_body_gives_no_answer(name: str) -> None:
    answers, parser = parse(ANSWERS[name][:-3], [])
    assert answers == []
    assert parser.end() is None


@pytest.mark.parametrize(
    ("raw", "stays"),
    [
        pytest.param(OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n", False, id="Connection: close"),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False, id="old protocol"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", True, id="no content"),
    ],
)
def test_whether_the_connection_stays_open(raw: bytes, stays: bool) -> None:
    answers, parser = parse(raw, [])
    assert len(answers) == 1
    assert parser.stays_open is stays


def test_retry_after_header_is_kept() -> None:
    raw = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\nContent-Length: 0\r\n\r\n"
    ((answer,), _) = parse(raw, [])
    assert answer.status == 429
    assert answer.headers.get("Retry-After") == "7"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "not an HTTP answer", id="another protocol"),
        pytest.param(
            OK + b"Content-Length: -1\r\n\r\n", "Content-Length of an answer is '-1'", id="negative length"
        ),
        pytest.param(OK + b"Content-Length: 101\r\n\r\n", "larger than", id="announced length too long"),
        pytest.param(OK + b"\r\n" + b"x" * 101, "larger than", id="long without a length"),
        pytest.param(
            OK
            + b"Transfer-Encoding: chunked\r\n\r\n33\r\n"
            + b"x" * 51
            + b"\r\n33\r\n"
            + b"x" * 51
            + b"\r\n",
            "larger than",
            id="long in chunks",
        ),
        pytest.param(CHUNKED + b"xyz\r\n", "the length of a chunk is", id="chunk length is not a number"),
        pytest.param(CHUNKED + b"-6\r\nabcdefgh\r\n", "the length of a chunk is b'-6'", id="negative chunk"),
        pytest.param(CHUNKED + b"+6\r\n", "the length of a chunk is", id="chunk with a sign"),
        pytest.param(CHUNKED + b"0x6\r\n", "the length of a chunk is", id="chunk with a prefix"),
        pytest.param(CHUNKED + b"1_0\r\n", "the length of a chunk is", id="chunk as Python writes numbers"),
        pytest.param(CHUNKED + b"\r\n", "the length of a chunk is", id="chunk without a length"),
        pytest.param(CHUNKED + b"65\r\n", "larger than", id="announced chunk too long"),
        pytest.param(
            CHUNKED + b"3\r\nabcdef\r\n", "longer than its announced length", id="chunk past its end"
        ),
        pytest.param(CHUNKED + b"1" * (65 << 10), "head of an answer or of its chunk", id="endless length"),
        pytest.param(CHUNKED + b"0\r\n" + b"x" * (65 << 10), "head of an answer", id="endless trailer"),
        pytest.param(OK + b"Content-Length: \xb2\r\n\r\n", "Content-Length of an", id="not an ASCII digit"),
        pytest.param(
            OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", "Content-Length of", id="not a number"
        ),
        pytest.param(b"HTTP/1.1 \xb200 OK\r\n\r\n", "not an HTTP answer", id="status of other digits"),
        pytest.param(
            b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
            "switches to another protocol",
            id="switching protocols",
        ),
        pytest.param(b"x" * (65 << 10), "head of an answer", id="endless head"),
    ],
)
def test_malformed_answer_is_refused(raw: bytes, message: str) -> None:
    with pytest.raises(BadAnswer, match=message):
        parse(raw, [])
