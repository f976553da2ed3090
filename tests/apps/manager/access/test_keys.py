"""Keys and tokens."""

from dataclasses import replace

import pytest

from gpu_orchestrator.apps.manager.access import keys
from gpu_orchestrator.apps.manager.errors import Forbidden, Unauthorized

KEYS = keys.Keys([keys.key_of("api", "admin"), keys.key_of("join", "worker")])


def test_a_made_key_has_256_bits_and_is_new_each_time() -> None:
    assert len(bytes.fromhex(keys.make().removeprefix("gpo_"))) == 32
    assert keys.make() != keys.make()


def test_only_the_hash_is_kept() -> None:
    assert b"secret" not in keys.key_of("secret", "admin").digest


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic api", "Bearer apy"])
def test_who_has_no_key_is_told_so(header: str) -> None:
    with pytest.raises(Unauthorized):
        KEYS.find(header)


def test_a_worker_token_opens_only_the_door_for_workers() -> None:
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
def test_what_a_scope_includes(has: set[keys.Scope], may: set[keys.Scope]) -> None:
    key = keys.Key("i", b"d", "n", "ann", frozenset(has))
    assert {scope for scope in keys.SCOPES if key.may(scope)} == may
    assert key.sees == ("" if "admin" in has else "ann")


def test_a_key_is_good_until_it_expires_or_is_revoked() -> None:
    now = [1000]
    book = keys.Keys([], now_ms=lambda: now[0])
    key = keys.Key("i", keys.digest_of("s"), "n", "o", frozenset({"read"}), expires_ms=2000)
    book.replace([key])
    assert book.find("Bearer s") == key
    assert book.used == {"i": 1000}
    now[0] = 2000
    with pytest.raises(Unauthorized, match="has expired"):
        book.find("Bearer s")
    assert not book.is_good(key)
    book.replace([replace(key, expires_ms=0, revoked_ms=1)])
    with pytest.raises(Unauthorized, match="was revoked"):
        book.find("Bearer s")
    book.replace([])
    with pytest.raises(Unauthorized, match="not known"):
        book.find("Bearer s")


def test_a_key_shows_no_part_of_its_hash() -> None:
    assert "digest" not in repr(keys.key_of("secret", "admin"))
