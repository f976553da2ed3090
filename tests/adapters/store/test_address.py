"""Addresses of the store, and what makes a server unfit."""

import pytest

from gpu_orchestrator.adapters.store.valkey.address import Address, BadAddress, Login, Place, Tls, redact
from gpu_orchestrator.adapters.store.valkey.facts import HIDDEN, Facts, unfit

HERE = Address.of("redis://127.0.0.1")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://", Address((Place("127.0.0.1", 6379),), Login())),
        ("redis://db:7/3", Address((Place("db", 7),), Login(database=3))),
        ("redis://u:p%40s@[::1]/1", Address((Place("::1", 6379),), Login("u", "p@s", 1))),
        ("redis://:a:b@db", Address((Place("db", 6379),), Login("", "a:b"))),
        ("unix:///run/v.sock?db=2", Address((Place(path="/run/v.sock"),), Login(database=2))),
        (
            "rediss://db?ca=/ca.pem&cert=/c.pem&key=/k.pem&server_name=x.example",
            Address((Place("db", 6379),), Login(), Tls("/ca.pem", "/c.pem", "/k.pem", "x.example")),
        ),
        (
            "sentinel://:p@a:1,b,[::1]:2/main?db=4&sentinel_user=su&sentinel_password=s%26p",
            Address(
                (Place("a", 1), Place("b", 26379), Place("::1", 2)),
                Login("", "p", 4),
                None,
                "main",
                Login("su", "s&p"),
            ),
        ),
        ("sentinels://a/main", Address((Place("a", 26379),), Login(), Tls(), "main")),
    ],
)
def test_address_is_read(url: str, expected: Address) -> None:
    assert Address.of(url) == expected


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://x", "begins with http, which is not allowed: give redis://"),
        ("x", "begins with nothing"),
        ("redis://x/zero", "has no number of a database but 'zero'"),
        ("redis://x?ca=/ca.pem", "has an option that redis:// does not know, ca: give db"),
        ("rediss://x?key=/k.pem", "has a key for TLS and no cert"),
        ("redis://a:b:c", "has no host and port but 'a:b:c'"),
        ("sentinel://a:1", "does not name the primary"),
    ],
)
def test_bad_address_says_what_to_give(url: str, message: str) -> None:
    with pytest.raises(BadAddress) as caught:
        Address.of(url)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://db:6379/0", "redis://db:6379/0"),
        ("redis://:secret@db:6379/0", "redis://:***@db:6379/0"),
        ("redis://u:secret@db", "redis://u:***@db"),
        (
            "sentinel://:s1@a,b/m?sentinel_password=s2&db=1",
            "sentinel://:***@a,b/m?sentinel_password=***&db=1",
        ),
    ],
)
def test_passwords_are_redacted(url: str, shown: str) -> None:
    assert redact(url) == shown


def facts(**info: str) -> Facts:
    fsync = info.pop("fsync", "always")
    return Facts.of({"valkey_version": "8.0.1", "aof_enabled": "1", **info}, fsync)


@pytest.mark.parametrize(
    ("found", "strict", "message"),
    [
        (facts(), True, ""),
        (facts(valkey_version="7.0.15"), False, ""),
        (facts(valkey_version="7.0.15"), True, "DURABILITY=strict needs 7.2 or newer, which has WAITAOF"),
        (facts(valkey_version="6.2.0"), False, "7.0 or newer is needed"),
        (facts(cluster_enabled="1"), False, "it runs in cluster mode, which is not supported"),
        (facts(aof_enabled="0"), True, "DURABILITY=strict needs an append-only file"),
    ],
)
def test_unfit_store_is_refused(found: Facts, strict: bool, message: str) -> None:
    wrong = "; ".join(unfit(found, HERE, strict=strict, insecure=False))
    assert (message in wrong) if message else not wrong


@pytest.mark.parametrize(
    ("found", "strict", "replicas", "weakness"),
    [
        (facts(), False, 0, ""),
        (facts(fsync="everysec"), False, 0, "appendfsync is everysec"),
        (facts(fsync="everysec"), True, 0, ""),
        (facts(fsync=HIDDEN), False, 0, "unknown durability: the store hides its settings"),
        (facts(fsync=HIDDEN), True, 0, ""),
        (facts(connected_slaves="1"), False, 0, "a failover loses what no replica has yet"),
        (facts(connected_slaves="1"), True, 0, "a failover loses what no replica has yet"),
        (facts(connected_slaves="1"), True, 1, ""),
    ],
)
def test_weakness_of_a_store_is_known(found: Facts, strict: bool, replicas: int, weakness: str) -> None:
    shown = found.weakness(strict=strict, durable_replicas=replicas)
    assert (weakness in shown) if weakness else shown == ""
