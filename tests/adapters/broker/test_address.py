"""Where Celery's broker is, from the settings or from the manager's store."""

import ssl
from pathlib import Path

import pytest

from gpu_orchestrator.adapters import settings
from gpu_orchestrator.adapters.broker import config
from gpu_orchestrator.adapters.broker.address import Broker, broker_of
from gpu_orchestrator.adapters.settings import BadSettings


def broker(store: str = "", **given: str) -> Broker:
    return broker_of(settings.load(given, Path("/nowhere")), store)


@pytest.mark.parametrize(
    ("store", "url"),
    [
        ("redis://host:6390/2", "redis://host:6390/2"),
        ("redis://me:s%2Fcret@host/1", "redis://me:s%2Fcret@host:6379/1"),
        ("redis://:secret@[::1]:7/0", "redis://:secret@[::1]:7/0"),
        ("unix:///run/v.sock?db=3", "redis+socket:///run/v.sock?virtual_host=3"),
    ],
)
def test_store_is_the_broker_and_keeps_results(store: str, url: str) -> None:
    assert broker(store) == Broker(url, url)


def test_embedded_store_is_found_by_its_data_directory(tmp_path: Path) -> None:
    found = broker(DATA_DIR=str(tmp_path / "d"))
    assert found.url == f"redis+socket://{tmp_path}/d/store/valkey.sock?virtual_host=0"


def test_store_with_tls_gives_its_files() -> None:
    found = broker("rediss://host/0?ca=/ca.pem&cert=/c.pem&key=/k.pem")
    assert found.tls == {
        "ssl_cert_reqs": ssl.CERT_REQUIRED,
        "ssl_ca_certs": "/ca.pem",
        "ssl_certfile": "/c.pem",
        "ssl_keyfile": "/k.pem",
    }
    assert config.of(found)["broker_use_ssl"] == found.tls


def test_configured_broker_wins_and_other_brokers_keep_no_results() -> None:
    found = broker("redis://store/0", CELERY_BROKER_URL="amqp://rabbit//")
    assert found == Broker("amqp://rabbit//", "disabled://")
    assert config.of(found)["broker_transport_options"] == {}


@pytest.mark.parametrize(
    ("store", "says"),
    [
        pytest.param("sentinel://a:1,b:2/main", "set CELERY_BROKER_URL=sentinel://", id="sentinels"),
        pytest.param("rediss://h/0?server_name=x", "REDIS_SERVER_NAME=x", id="server name"),
    ],
)
def test_store_that_celery_cannot_address_is_refused(store: str, says: str) -> None:
    with pytest.raises(BadSettings, match=says):
        broker(store)


def test_addresses_are_never_shown() -> None:
    assert "secret" not in repr(broker("redis://:secret@h/0"))
