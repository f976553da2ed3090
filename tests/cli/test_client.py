"""What a command says when the peer is not what it should be. The peers are plain sockets."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from controlplane.cluster import free_port
from gpu_orchestrator.cli import client, task_logs
from gpu_orchestrator.cli.plain import lines, output_of_a_program
from gpu_orchestrator.cli.where import Place


@contextmanager
def peer(*answers: bytes) -> Iterator[str]:
    """Answer each connection with the next of these bytes; yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for answer in answers:
                connection, _ = server.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(answer)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(10)


def http(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(
            http(b"<html>hello</html>"), "is not a cluster manager; check the address", id="a website"
        ),
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n", "what answers there is something else", id="not HTTP"),
        pytest.param(b"", "what answers there is something else", id="closed at once"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
            "what answers there is something else",
            id="cut off",
        ),
        pytest.param(
            http(b"nonsense", "500 Oops"), "is not a cluster manager", id="an error that is not ours"
        ),
    ],
)
def test_odd_peer_is_explained(answer: bytes, words: str) -> None:
    with peer(answer) as url, pytest.raises(client.Unreachable, match=words):
        client.request(Place(url), "GET", "/tasks")


def test_nobody_there_says_what_to_do() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(client.Unreachable) as caught:
        client.request(Place(url), "GET", "/tasks")
    assert str(caught.value) == (
        f"no cluster manager answers at {url} (connection refused); start one with `gpu-orchestrator up`, or "
        "name another with --url or `gpu-orchestrator login URL`"
    )


def test_unknown_name_is_said_plainly() -> None:
    with pytest.raises(client.Unreachable, match=r"\(the name nowhere\.invalid is not known\)"):
        client.request(Place("http://nowhere.invalid:8000"), "GET", "/tasks")


def test_refusal_carries_its_message_and_when_to_try_again() -> None:
    body = b'{"error": {"code": "too_many_requests", "message": "slow down", "details": {}}}'
    answer = http(body, "429 Too Many Requests").replace(b"Connection", b"Retry-After: 7\r\nConnection")
    with peer(answer) as url, pytest.raises(client.Refused, match="slow down") as caught:
        client.request(Place(url), "GET", "/tasks")
    assert (caught.value.status, caught.value.retry_after_s) == (429, 7.0)


def test_stream_goes_on_after_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "AGAIN_S", 0.0)
    first = http(b": from here on\nid: 1-1\n\nid: 1-2\nevent: a\ndata: {}\n\n", kind="text/event-stream")
    second = http(b'id: 1-3\nevent: b\ndata: {"x":\ndata: 1}\n\n', kind="text/event-stream")
    with peer(first, second) as url:
        stream = client.follow(Place(url), "/events")
        found = [next(stream) for _ in range(3)]
        stream.close()  # type: ignore[attr-defined]
    assert [(each.id, each.name, each.data) for each in found] == [
        ("1-1", "", None),
        ("1-2", "a", {}),
        ("1-3", "b", {"x": 1}),
    ]


def test_follower_of_a_log_is_told_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    events = (
        b'id: 9\nevent: log\ndata: {"text": "two\\n", "omitted_bytes": 5}\n\n'
        b'event: end\ndata: {"status": "completed"}\n\n'
    )
    with peer(http(events, kind="text/event-stream")) as url:
        task_logs._follow(Place(url), "t", 0)
    assert capsys.readouterr() == ("two\n", "5 bytes are not kept\n")


def test_message_keeps_its_lines() -> None:
    assert lines("one\n\x1b[2Jtwo") == "one\n\\x1b[2Jtwo"


def test_output_of_a_program_cannot_change_the_terminal() -> None:
    assert output_of_a_program("\x1b[32mgreen\x1b[0m\ta\r10%\r20%\n\x1b[2J") == "green\ta\n10%\n20%\n\\x1b[2J"
