"""When a certificate ends is read right, whatever the form of its date."""

from datetime import UTC, datetime

import pytest

from gpu_orchestrator.adapters.kube.auth import tls
from tests.support.kube_certificates import Authority


@pytest.mark.parametrize("year", [2020, 2035, 2049, 2050, 2120])
def test_end_of_a_certificate(year: int) -> None:
    ends = datetime(year, 3, 4, 5, 6, 7, tzinfo=UTC)
    assert tls.ends_at(Authority().pair("x", ends=ends).certificate_pem) == ends


@pytest.mark.parametrize(
    "pem", [b"", b"rubbish", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"]
)
def test_no_certificate_has_no_end(pem: bytes) -> None:
    assert tls.ends_at(pem) is None
