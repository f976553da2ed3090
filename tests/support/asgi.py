"""Call an ASGI application as a server does, without one: thousands of requests in a second."""

from typing import Any

CHUNK = 256 << 10


async def post(app: Any, path: str, body: bytes, *, method: str = "POST") -> tuple[int, bytes]:
    """Return the status and the body of the answer."""
    parts = [body[at : at + CHUNK] for at in range(0, len(body), CHUNK)] or [b""]
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "https",
        "headers": [(b"content-length", str(len(body)).encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:])
