"""A small S3 for tests: keeps objects in memory and checks every signature from the raw request, with code of
its own. Path-style addresses; put, get, delete, list with pages of two."""

import hmac
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from hashlib import sha256
from xml.sax.saxutils import escape

from aiohttp import web

ACCESS, SECRET, BUCKET = "tester", "a secret/with+signs", "results"
PAGE = 2
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request,"
    r"\s*SignedHeaders=([^,]+),\s*Signature=(\w{64})"
)


class S3:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.refused = 0
        self.is_down = False
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.is_down:
            return web.Response(status=503, text="<Error><Code>SlowDown</Code></Error>")
        if not _is_signed(request, body):
            self.refused += 1
            return web.Response(status=403, text="<Error><Code>SignatureDoesNotMatch</Code></Error>")
        bucket, _, key = request.path.removeprefix("/").partition("/")
        if bucket != BUCKET:
            return web.Response(status=404, text="<Error><Code>NoSuchBucket</Code></Error>")
        match request.method:
            case "PUT":
                self.objects[key] = body
                return web.Response()
            case "DELETE":
                self.objects.pop(key, None)
                return web.Response(status=204)
        if not key:
            return self._list(request)
        if key not in self.objects:
            return web.Response(status=404, text="<Error><Code>NoSuchKey</Code></Error>")
        return web.Response(body=self.objects[key])

    def _list(self, request: web.Request) -> web.Response:
        after = request.query.get("continuation-token", "")
        keys = sorted(key for key in self.objects if key.startswith(request.query["prefix"]) and key > after)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{now}</LastModified>"
            f"<Size>{len(self.objects[key])}</Size></Contents>"
            for key in keys[:PAGE]
        )
        more = f"<NextContinuationToken>{keys[PAGE - 1]}</NextContinuationToken>" if len(keys) > PAGE else ""
        return web.Response(text=f"<ListBucketResult>{entries}{more}</ListBucketResult>")


def _is_signed(request: web.Request, body: bytes) -> bool:
    found = _AUTHORIZATION.fullmatch(request.headers.get("Authorization", ""))
    if found is None or found[1] != ACCESS:
        return False
    day, region, names, signature = found[2], found[3], found[4].split(";"), found[5]
    if {"host", "x-amz-date", "x-amz-content-sha256"} - set(names):
        return False
    if request.headers["x-amz-content-sha256"] != sha256(body).hexdigest():
        return False
    path, _, query = request.raw_path.partition("?")
    headers = "".join(f"{name}:{request.headers[name].strip()}\n" for name in names)
    canonical = "\n".join(
        [
            request.method,
            path,
            "&".join(sorted(query.split("&"))) if query else "",
            headers,
            found[4],
            request.headers["x-amz-content-sha256"],
        ]
    )
    key = b"AWS4" + SECRET.encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    scope = f"{day}/{region}/s3/aws4_request"
    digest = sha256(canonical.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{request.headers['x-amz-date']}\n{scope}\n{digest}"
    return hmac.compare_digest(hmac.digest(key, text.encode(), "sha256").hex(), signature)


@asynccontextmanager
async def s3_server() -> AsyncIterator[S3]:
    store, app = S3(), web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{tail:.*}", store.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    store.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield store
    finally:
        await runner.cleanup()
