"""Keys and tokens."""

import pytest

from gpu_orchestrator.apps.cluster import keys
from gpu_orchestrator.apps.cluster.errors import Forbidden, Unauthorized

KEYS = keys.Keys([keys.key_of("api", "admin"), keys.key_of("join", "worker")])


def test_a_made_key_has_256_bits_and_is_new_each_time() -> None:
    assert len(bytes.fromhex(keys.make().removeprefix("gpo_"))) == 32
    assert keys.make() != keys.make()


def test_only_the_hash_is_kept() -> None:
    assert b"secret" not in keys.key_of("secret", "admin").digest


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic api", "Bearer apy"])
def test_who_has_no_key_is_told_so(header: str) -> None:
    with pytest.raises(Unauthorized):
        KEYS.demand(header, "admin")


def test_a_worker_token_opens_only_the_door_for_workers() -> None:
    assert KEYS.demand("bearer join", "worker").scopes == {"worker"}
    assert KEYS.demand("Bearer api", "worker").scopes == {"admin"}
    with pytest.raises(Forbidden, match="admin is needed"):
        KEYS.demand("Bearer join", "admin")
