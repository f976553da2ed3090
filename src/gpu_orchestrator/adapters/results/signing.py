"""AWS Signature Version 4 for requests to S3-compatible stores. Pure: the caller passes the time."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from urllib.parse import quote

ALGORITHM = "AWS4-HMAC-SHA256"
EMPTY = sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Credentials:
    access_key: str
    secret_key: str = field(repr=False)
    region: str = "us-east-1"


@dataclass(frozen=True, slots=True)
class Unsigned:
    """A request before it is signed. `path` is not escaped; `headers` are signed, `Host` among them."""

    method: str
    path: str
    headers: Mapping[str, str]
    query: Mapping[str, str] = field(default_factory=dict)
    body_sha256: str = EMPTY


def signed_headers(request: Unsigned, credentials: Credentials, now: datetime) -> dict[str, str]:
    """Return the headers of the request, with those that sign it."""
    moment = now.strftime("%Y%m%dT%H%M%SZ")
    headers = {**request.headers, "x-amz-content-sha256": request.body_sha256, "x-amz-date": moment}
    scope = f"{moment[:8]}/{credentials.region}/s3/aws4_request"
    names = ";".join(sorted(name.lower() for name in headers))
    text = "\n".join((ALGORITHM, moment, scope, sha256(_canonical(request, headers).encode()).hexdigest()))
    signature = hmac.new(_key(credentials, moment[:8]), text.encode(), sha256).hexdigest()
    by = f"Credential={credentials.access_key}/{scope},SignedHeaders={names},Signature={signature}"
    return {**headers, "Authorization": f"{ALGORITHM} {by}"}


def escaped(path: str) -> str:
    return quote(path, safe="/-_.~")


def query_string(query: Mapping[str, str]) -> str:
    pairs = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in query.items())
    return "&".join(f"{name}={value}" for name, value in pairs)


def _canonical(request: Unsigned, headers: Mapping[str, str]) -> str:
    lowered = sorted((name.lower(), value.strip()) for name, value in headers.items())
    return "\n".join(
        (
            request.method,
            escaped(request.path),
            query_string(request.query),
            *(f"{name}:{value}" for name, value in lowered),
            "",
            ";".join(name for name, _ in lowered),
            request.body_sha256,
        )
    )


def _key(credentials: Credentials, day: str) -> bytes:
    key = f"AWS4{credentials.secret_key}".encode()
    for part in (day, credentials.region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), sha256).digest()
    return key
