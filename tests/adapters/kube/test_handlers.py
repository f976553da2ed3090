"""A late handler sees every object added first and then its changes in order, also if it takes them in
slices."""

import asyncio
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.adapters.breath import Breath
from gpu_orchestrator.adapters.kube.informer.handlers import Handlers
from gpu_orchestrator.adapters.kube.informer.store import Change, Store
from tests.support.examples import cases
from tests.support.kube_objects import ConfigMap, config_map

NAMES = "abcdefgh"


class Follower:
    """Keeps its own copy from what it is told, and notes each change that does not follow from it."""

    def __init__(self) -> None:
        self.copy: dict[str, ConfigMap] = {}
        self.told = 0
        self.out_of_order: list[str] = []

    def __call__(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        self.told += 1
        name = (new or old or config_map()).metadata.name
        if old != self.copy.pop(name, None):
            self.out_of_order.append(name)
        if new is not None:
            self.copy[name] = new


def breath_every_step() -> Breath:
    return Breath(lambda: 0.0, slice_s=0.0)


@cases(100)
@given(seed=st.integers(0, 2**32))
def test_changes_between_slices_are_neither_lost_nor_reordered(seed: int) -> None:
    async def scenario() -> None:
        rng, store = Random(seed), Store[ConfigMap]()
        handlers, versions = Handlers(store, "configmaps"), iter(range(1, 1000))
        for name in rng.sample(NAMES, 5):
            store.put(config_map(name, version=next(versions)))
        follower = Follower()
        adding = asyncio.create_task(handlers.add_in_slices(follower, breath_every_step()))
        for _ in range(rng.randint(0, 12)):
            await asyncio.sleep(0)
            handlers.notify(some_change(rng, store, next(versions)))
        await adding
        handlers.notify(some_change(rng, store, next(versions)))
        assert follower.copy == {obj.metadata.name: obj for obj in store}
        assert follower.out_of_order == []

    asyncio.run(scenario())


def some_change(rng: Random, store: Store[ConfigMap], version: int) -> list[Change[ConfigMap]]:
    name = rng.choice(NAMES)
    known = store.get(f"default/{name}")
    if known is not None and rng.random() < 0.3:
        return store.drop(f"default/{name}")
    is_same = known is not None and rng.random() < 0.6
    uid = known.metadata.uid if known is not None and is_same else f"uid-{version}"
    return store.put(config_map(name, version=version, uid=uid))


async def test_list_goes_on_where_it_was_cancelled() -> None:
    store = Store[ConfigMap]()
    handlers, follower = Handlers(store, "configmaps"), Follower()
    handlers.add(follower)
    handlers.set_listed(store.replace({f"default/{name}": config_map(name) for name in NAMES}))
    reporting = asyncio.create_task(handlers.report_listed(breath_every_step()))
    for _ in range(3):
        await asyncio.sleep(0)
    reporting.cancel()
    await asyncio.wait({reporting})
    assert 0 < follower.told < len(NAMES)
    assert handlers.has_listed
    await handlers.report_listed(breath_every_step())
    assert set(follower.copy) == set(NAMES)


async def test_handler_added_during_a_list_sees_each_object_once() -> None:
    store = Store[ConfigMap]()
    handlers, early, late = Handlers(store, "configmaps"), Follower(), Follower()
    handlers.add(early)
    handlers.set_listed(store.replace({f"default/{name}": config_map(name) for name in NAMES}))
    reporting = asyncio.create_task(handlers.report_listed(breath_every_step()))
    await asyncio.sleep(0)
    handlers.add(late)
    await reporting
    assert early.told == late.told == len(NAMES)


async def test_handler_for_later_changes_hears_of_no_object_before() -> None:
    store = Store[ConfigMap]()
    handlers, told = Handlers(store, "configmaps"), list[Change[ConfigMap]]()
    store.put(known := config_map("a", version=1))
    handlers.add_for_changes(lambda old, new: told.append((old, new)))
    assert told == []
    handlers.notify(store.put(changed := config_map("a", version=2)))
    handlers.notify(store.drop("default/a"))
    assert told == [(known, changed), (changed, None)]
