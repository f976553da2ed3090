"""Where Celery's broker and result backend are: as configured, or in the manager's own store.

The manager and the Celery workers find them the same way.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpu_orchestrator.adapters.settings import BadSettings, Settings
from gpu_orchestrator.adapters.store.valkey import embedded
from gpu_orchestrator.adapters.store.valkey.address import Address, Login, Tls

OF_SETTINGS = (
    *("executor", "data_dir", "celery_broker_url", "celery_broker_url_file"),
    *("celery_result_backend", "celery_result_backend_file"),
    *("redis_url", "redis_url_file", "redis_host", "redis_port", "redis_db"),
    *("redis_password", "redis_password_file", "redis_tls", "redis_ca_path", "redis_cert_path"),
    *("redis_key_path", "redis_server_name", "redis_sentinels", "redis_sentinel_master"),
    *("redis_sentinel_password", "redis_sentinel_password_file"),
)
"""The settings that say where the broker is; a Celery worker reads no others."""
KEEPS_RESULTS = ("redis://", "rediss://", "redis+socket://", "sentinel://", "sentinels://")
NO_RESULTS = "disabled://"


@dataclass(frozen=True, slots=True)
class Broker:
    """URLs as Celery has them, and the files for TLS if our own store is meant."""

    url: str = field(repr=False)
    results: str = field(repr=False)
    tls: dict[str, Any] = field(default_factory=dict)


def broker_of(settings: Settings, store: str = "") -> Broker:
    """Return the broker of these settings. `store` is the address of the manager's store, if it is known."""
    url, results = settings.celery_broker_url, settings.celery_result_backend
    tls: dict[str, Any] = {}
    if not url:
        store = store or settings.external_store or f"unix://{embedded.socket_of(Path(settings.data_dir))}"
        url, tls = _of_store(store)
    keeps = url.startswith(KEEPS_RESULTS)
    return Broker(url, results or (url if keeps else NO_RESULTS), tls)


def _of_store(store: str) -> tuple[str, dict[str, Any]]:
    at = Address.of(store)
    if at.primary:
        raise BadSettings(
            "EXECUTOR=celery and a store behind Sentinels: Celery takes another form of address; set "
            "CELERY_BROKER_URL=sentinel://host:26379;sentinel://host2:26379, or another broker"
        )
    (place,) = at.places
    if place.path:
        return f"redis+socket://{_login(at.login)}{place.path}?virtual_host={at.login.database}", {}
    host = f"[{place.host}]" if ":" in place.host else place.host
    tls = _tls(at.tls) if at.tls else {}
    scheme = "rediss" if tls else "redis"
    return f"{scheme}://{_login(at.login)}{host}:{place.port}/{at.login.database}", tls


def _login(login: Login) -> str:
    if not login.password:
        return ""
    return f"{quote(login.user, safe='')}:{quote(login.password, safe='')}@"


def _tls(tls: Tls) -> dict[str, Any]:
    files = {"ssl_ca_certs": tls.ca, "ssl_certfile": tls.cert, "ssl_keyfile": tls.key}
    if tls.server_name:
        raise BadSettings(
            f"REDIS_SERVER_NAME={tls.server_name}: Celery checks the certificate against the host alone; set "
            "CELERY_BROKER_URL to a name that the certificate is for"
        )
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED, **{name: path for name, path in files.items() if path}}
