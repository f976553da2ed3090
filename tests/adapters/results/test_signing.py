"""Signatures of requests to S3: the examples of AWS's own documentation."""

from datetime import UTC, datetime
from hashlib import sha256

import pytest

from gpu_orchestrator.adapters.results.signing import Credentials, Unsigned, signed_headers

EXAMPLE = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1")
HOST = {"Host": "examplebucket.s3.amazonaws.com"}
PUT = {"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"}


@pytest.mark.parametrize(
    ("request_", "signature"),
    [
        pytest.param(
            Unsigned("GET", "/test.txt", {**HOST, "Range": "bytes=0-9"}),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            id="get",
        ),
        pytest.param(
            Unsigned(
                "PUT",
                "/test$file.text",
                {**HOST, **PUT},
                body_sha256=sha256(b"Welcome to Amazon S3.").hexdigest(),
            ),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            id="put, with a name that is escaped",
        ),
        pytest.param(
            Unsigned("GET", "/", HOST, {"max-keys": "2", "prefix": "J"}),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            id="list",
        ),
    ],
)
def test_signature_is_that_of_the_documentation(request_: Unsigned, signature: str) -> None:
    headers = signed_headers(request_, EXAMPLE, datetime(2013, 5, 24, tzinfo=UTC))
    assert headers["Authorization"].endswith(f"Signature={signature}")


def test_secret_is_not_shown() -> None:
    assert EXAMPLE.secret_key not in repr(EXAMPLE)
