"""The blocking client on a real connection: each request is sent once, and connections are used again."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gpu_orchestrator import Client


def test_requests_go_once_and_over_one_connection() -> None:
    asked: list[tuple[str, int]] = []

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_DELETE(self) -> None:
            asked.append((self.path.rpartition("/")[2], self.client_address[1]))
            body = b'{"schedule_id": "x"}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        with Client(f"http://127.0.0.1:{server.server_address[1]}", key="k" * 40) as client:
            for name in "abc":
                client.schedules.delete(name)
        server.shutdown()
        thread.join(10)
    assert [name for name, _ in asked] == ["a", "b", "c"]
    assert len({port for _, port in asked}) == 1
