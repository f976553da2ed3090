"""A stand-in for a model server with OpenAI's API: answers the words of the prompt in reverse order.

`python -m tests.support.model_server PORT JOURNAL`: adds a line to the journal when it starts, and when an
endless answer begins and its client goes away, and when it is asked to end. The word `crash` kills it, `ill`
makes it say that it is not healthy, `wait` answers once there is a file JOURNAL.gate. With `stubborn` as a
third argument it does not end when it is asked to, and has a child that does not either."""

import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

JOURNAL = Path(sys.argv[2])
IS_STUBBORN = "stubborn" in sys.argv
ILL: list[str] = []


def note(line: str) -> None:
    with JOURNAL.open("a") as lines:
        lines.write(f"{line}\n")


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        self.send_response(503 if ILL else 200)
        self.end_headers()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "input" in asked:
            data = [{"index": at, "embedding": [float(len(each))]} for at, each in enumerate(asked["input"])]
            return self._answer(200, {"data": data, "usage": {"prompt_tokens": 2}})
        words = (asked.get("prompt") or asked["messages"][-1]["content"]).split()
        if words == ["refuse"]:
            return self._answer(400, {"error": {"message": "as asked"}})
        self.send_response(200)
        self.end_headers()
        for word in reversed(words):
            if word == "silent":
                time.sleep(3600)
            if word == "ill":
                ILL.append(word)
            if word == "wait":
                note("waits")
                while not JOURNAL.with_suffix(".gate").exists():
                    time.sleep(0.01)
            if word == "crash":
                note("crash")
                os._exit(7)
            choice = {"text": f"{word} "} if "prompt" in asked else {"delta": {"content": f"{word} "}}
            self._event({"choices": [{"finish_reason": None, **choice}]})
            if word == "forever":
                note("begun")
            while word == "forever":
                time.sleep(0.01)
                try:
                    self._event({"choices": []})
                except OSError:
                    return note("left")
        self._event({"choices": [{"finish_reason": "length", "delta": {}}]})
        self._event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": len(words)}})
        self.wfile.write(b"data: [DONE]\n\n")
        return None

    def _answer(self, status: int, body: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def _event(self, body: Any) -> None:
        self.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")
        self.wfile.flush()


def asked_to_end(*_: Any) -> None:
    note("term")
    if not IS_STUBBORN:
        os._exit(0)


if __name__ == "__main__":
    if IS_STUBBORN and (child := os.fork()) == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
    if IS_STUBBORN:
        note(str(child))
    signal.signal(signal.SIGTERM, asked_to_end)
    note("start")
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
