"""Tests of keys, tokens and scopes."""

from dataclasses import replace

import pytest

from gpu_orchestrator.apps.manager.access import keys
from gpu_orchestrator.apps.manager.errors import Forbidden, Unauthorized

KEYS = keys.Keys([keys.key_of("api", "admin"), keys.key_of("join", "worker")])


def test_new_key_has_256_random_bits() -> None:
    assert len(bytes.fromhex(keys.make().removeprefix("gpo_"))) == 32
    assert keys.make() != keys.make()


def test_key_holds_only_the_hash() -> None:
    assert b"secret" not in keys.key_of("secret", "admin").digest


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic api", "Bearer apy"])
def test_header_without_a_known_key_is_unauthorized(header: str) -> None:
    with pytest.raises(Unauthorized):
        KEYS.find(header)


def test_worker_token_has_only_the_worker_scope() -> None:
    KEYS.find("bearer join").demand("worker")
    with pytest.raises(Forbidden, match="admin is needed"):
        KEYS.find("Bearer join").demand("admin")


@pytest.mark.parametrize(
    ("has", "may"),
    [
        ({"read"}, {"read"}),
        ({"submit"}, {"read", "submit"}),
        ({"worker"}, {"worker"}),
        ({"read", "worker"}, {"read", "worker"}),
        ({"admin"}, {"read", "submit", "admin", "worker"}),
    ],
)
def test_scope_includes_weaker_scopes(has: set[keys.Scope], may: set[keys.Scope]) -> None:
    key = keys.Key("i", b"d", "n", "ann", frozenset(has))
    assert {scope for scope in keys.SCOPES if key.may(scope)} == may
    assert key.sees == ("" if "admin" in has else "ann")


def test_key_is_valid_until_it_expires_or_is_revoked() -> None:
    now = [1000]
    copy = keys.Keys([], now_ms=lambda: now[0])
    key = keys.Key("i", keys.digest_of("s"), "n", "o", frozenset({"read"}), expires_ms=2000)
    copy.replace([key])
    assert copy.find("Bearer s") == key
    assert copy.used == {"i": 1000}
    now[0] = 2000
    with pytest.raises(Unauthorized, match="has expired"):
        copy.find("Bearer s")
    assert not copy.is_good(key)
    copy.replace([replace(key, expires_ms=0, revoked_ms=1)])
    with pytest.raises(Unauthorized, match="was revoked"):
        copy.find("Bearer s")
    copy.replace([])
    with pytest.raises(Unauthorized, match="not known"):
        copy.find("Bearer s")


def test_repr_of_a_key_hides_the_hash() -> None:
    assert "digest" not in repr(keys.key_of("secret", "admin"))
