"""The end of a certificate is read correctly from both date formats."""

from datetime import UTC, datetime

import pytest

from gpu_orchestrator.adapters.kube.auth import tls
from tests.support.kube_certificates import Authority


@pytest.mark.parametrize("year", [2020, 2035, 2049, 2050, 2120])
def test_end_of_certificate_is_read(year: int) -> None:
    ends = datetime(year, 3, 4, 5, 6, 7, tzinfo=UTC)
    assert tls.ends_at(Authority().pair("x", ends=ends).certificate_pem) == ends


@pytest.mark.parametrize(
    "pem", [b"", b"rubbish", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"]
)
def test_malformed_certificate_has_no_end(pem: bytes) -> None:
    assert tls.ends_at(pem) is None
