"""Tests of the secrets that sign callbacks: one per owner, shown once, encrypted in the store."""

import pytest

from gpu_orchestrator.adapters.seal import CannotOpen
from tests.apps.manager.conftest import NewSite, Site
from tests.apps.manager.http.test_key_routes import bearing, make

pytestmark = pytest.mark.real


async def test_each_owner_has_its_own_secret(site: Site) -> None:
    signing = site.running.manager.signing
    ann, bob = [bearing((await make(site, name))["key"]) for name in ("ann", "bob")]
    assert await signing.find("ann") == ""
    status, first = await site.call("POST", "/callbacks/secret", **ann)
    assert (status, first["owner"], first["secret"][:6]) == (201, "ann", "whsec_")
    _, other = await site.call("POST", "/callbacks/secret", **bob)
    _, second = await site.call("POST", "/callbacks/secret", **ann)
    assert len({first["secret"], second["secret"], other["secret"]}) == 3
    assert await signing.find("ann") == second["secret"], "the last one counts"
    assert await signing.find("bob") == other["secret"]
    assert (await site.call("DELETE", "/callbacks/secret", **ann))[0] == 200
    assert await signing.find("ann") == ""
    assert (await site.call("DELETE", "/callbacks/secret", **ann))[0] == 404
    assert not await site.running.manager.store.database.exists("callback-secret:ann")


async def test_stored_secret_is_encrypted_and_bound_to_its_owner(site: Site) -> None:
    manager = site.running.manager
    secret = await manager.signing.make("ann")
    sealed = await manager.store.database.get("callback-secret:ann")
    assert sealed
    assert secret.removeprefix("whsec_").encode() not in sealed
    await manager.store.database.set("callback-secret:bob", sealed)
    with pytest.raises(CannotOpen):
        await manager.signing.find("bob")


async def test_servers_of_one_store_need_the_same_secrets_key(site: Site, new_site: NewSite) -> None:
    url = site.running.manager.store.database.url
    same = site.running.manager.settings.data_dir + "/secrets-key"
    secret = await site.running.manager.signing.make("ann")
    second: Site = await new_site("two", redis_url=url, secrets_key_file=same)
    assert await second.running.manager.signing.find("ann") == secret
    third: Site = await new_site("three", redis_url=url)
    with pytest.raises(CannotOpen, match="the same SECRETS_KEY_FILE"):
        await third.running.manager.signing.find("ann")
