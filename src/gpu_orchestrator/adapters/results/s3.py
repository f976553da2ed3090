"""Results as objects of an S3-compatible store: AWS S3, MinIO, Ceph and others, with path-style addresses."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from gpu_orchestrator.adapters.results.place import CHUNK, Kind, ResultAt, ResultError, ResultMissing
from gpu_orchestrator.adapters.results.signing import (
    EMPTY,
    Credentials,
    Unsigned,
    escaped,
    query_string,
    signed_headers,
)

if TYPE_CHECKING:
    import aiohttp

TIMEOUT_S = 30.0
PAGE = 500
_ENTRY = re.compile(r"<Contents>(.*?)</Contents>", re.DOTALL)
_TAG = re.compile(r"<(Key|Size|LastModified)>([^<]*)</")
_NEXT = re.compile(r"<NextContinuationToken>([^<]*)</")


@dataclass(frozen=True, slots=True)
class Bucket:
    """`endpoint` is an address such as `https://s3.eu-central-1.amazonaws.com`; objects get `prefix` before
    their name."""

    endpoint: str
    name: str
    prefix: str
    credentials: Credentials


class S3Results:
    kind: Kind = "s3"

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._http: aiohttp.ClientSession | None = None

    async def write(self, name: str, data: bytes) -> None:
        async with self._request("PUT", self._path(name), body=data) as answer:
            await self._check(answer, f"cannot write result {name} to {self._where}")

    async def take(self, name: str, path: Path, size: int, digest: str) -> None:
        with await asyncio.to_thread(path.open, "rb") as file:
            async with self._request("PUT", self._path(name), body=file, digest=digest, size=size) as answer:
                await self._check(answer, f"cannot write file {name} to {self._where}")

    async def stream(self, name: str) -> AsyncIterator[bytes]:
        async with self._request("GET", self._path(name)) as answer:
            if answer.status == 404:
                raise ResultMissing(
                    f"{self._where} does not have it; see RESULTS_S3_BUCKET and RESULTS_S3_PREFIX"
                )
            await self._check(answer, f"cannot read result {name} from {self._where}")
            async for chunk in answer.content.iter_chunked(CHUNK):
                yield chunk

    async def delete(self, names: Iterable[str]) -> None:
        for name in names:
            async with self._request("DELETE", self._path(name)) as answer:
                if answer.status != 404:
                    await self._check(answer, f"cannot delete result {name} from {self._where}")

    async def old(self, age_s: float) -> AsyncIterator[list[ResultAt]]:
        prefix, token = self._bucket.prefix, ""
        before = (datetime.now(UTC) - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%S")
        while True:
            query = {"list-type": "2", "prefix": prefix, "max-keys": str(PAGE)}
            if token:
                query["continuation-token"] = token
            async with self._request("GET", f"/{self._bucket.name}", query=query) as answer:
                await self._check(answer, f"cannot list {self._where}")
                text = await answer.text()
            entries = [dict(_TAG.findall(each)) for each in _ENTRY.findall(text)]
            page = [
                ResultAt(self.kind, int(each["Size"]), unescape(each["Key"])[len(prefix) :])
                for each in entries
                if each["LastModified"] < before
            ]
            if page:
                yield page
            if not (found := _NEXT.search(text)):
                return
            token = unescape(found[1])

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    @property
    def _where(self) -> str:
        return f"bucket {self._bucket.name} at {self._bucket.endpoint}"

    def _path(self, name: str) -> str:
        return f"/{self._bucket.name}/{self._bucket.prefix}{name}"

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: "bytes | BinaryIO" = b"",
        digest: str = "",
        size: int = 0,
    ) -> "AbstractAsyncContextManager[aiohttp.ClientResponse]":
        import aiohttp  # imported on first use, because it is large
        from yarl import URL

        if self._http is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_S, sock_read=TIMEOUT_S)
            self._http = aiohttp.ClientSession(timeout=timeout, trust_env=False)
        endpoint = URL(self._bucket.endpoint)
        host = endpoint.host if endpoint.is_default_port() else f"{endpoint.host}:{endpoint.port}"
        if isinstance(body, bytes):
            digest = sha256(body).hexdigest() if body else EMPTY
        unsigned = Unsigned(method, path, {"Host": host or ""}, query or {}, digest)
        headers = signed_headers(unsigned, self._bucket.credentials, datetime.now(UTC))
        if size:
            headers["Content-Length"] = str(size)
        url = f"{self._bucket.endpoint.rstrip('/')}{escaped(path)}"
        if query:
            url += f"?{query_string(query)}"
        return _Answer(self._http, method, URL(url, encoded=True), headers, body)

    async def _check(self, answer: "aiohttp.ClientResponse", what: str) -> None:
        if not 200 <= answer.status < 300:
            said = re.sub(r"\s+", " ", (await answer.text(errors="replace"))[:300])
            raise ResultError(f"{what}: it answered {answer.status}: {said}")


class _Answer:
    """A request whose failures are `ResultError`."""

    def __init__(
        self,
        http: "aiohttp.ClientSession",
        method: str,
        url: object,
        headers: dict[str, str],
        body: "bytes | BinaryIO",
    ) -> None:
        self._going = http.request(method, url, headers=headers, data=body or None, allow_redirects=False)  # type: ignore[arg-type]

    async def __aenter__(self) -> "aiohttp.ClientResponse":
        import aiohttp

        try:
            return await self._going.__aenter__()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ResultError(
                f"the store for results does not answer: {str(error) or type(error).__name__}"
            ) from error

    async def __aexit__(self, *given: object) -> None:
        await self._going.__aexit__(*given)  # type: ignore[arg-type]
