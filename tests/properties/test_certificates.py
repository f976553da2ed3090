"""Whatever replicas, clocks and watches do, API servers trust what each replica serves with."""

import random

from hypothesis import given
from hypothesis import strategies as st

from tests.support.certificate_model import Replica, World
from tests.support.certificates import LIFE_S, RULES
from tests.support.examples import cases

STEPS = (
    Replica.see_secret,
    Replica.see_config,
    Replica.decide,
    Replica.write,
    Replica.read_for_repair,
    Replica.repair,
    Replica.turn,
)


@cases(120)
@given(seed=st.integers(0, 2**32), replicas=st.integers(1, 4), servers=st.integers(1, 3), wild=st.booleans())
def test_served_leaf_is_always_trusted(seed: int, replicas: int, servers: int, wild: bool) -> None:
    rng, world = random.Random(seed), World.start(replicas=replicas, servers=servers)
    for _ in range(300):
        _step(rng, world, wild)
        assert world.untrusted() == []


def _step(rng: random.Random, world: World, wild: bool) -> None:
    what, replica = rng.random(), rng.choice(world.replicas)
    if what < 0.15:
        world.advance(rng.choice((0.25, 1.0, RULES.propagation_s, 20.0)))
    elif what < 0.25:
        world.see(rng.randrange(len(world.servers)))
    elif what < 0.255:
        world.restart(replica)
    elif wild and what < 0.27:
        replica.clock_offset_s = rng.uniform(-3, 3) * LIFE_S
    elif what < 0.275:
        world.delete_secret()
    else:
        rng.choice(STEPS)(replica)


@cases(12)
@given(replicas=st.integers(1, 4), tick_s=st.sampled_from((0.25, 1.0, 2.5, 4.0)))
def test_leaf_is_replaced_long_before_it_expires(replicas: int, tick_s: float) -> None:
    world, seen = World.start(replicas=replicas, servers=2), set[str]()
    while world.now_s < 10 * LIFE_S:
        world.advance(tick_s)
        world.turn()
        assert world.untrusted() == []
        for each in world.replicas:
            assert each.serving is not None
            assert each.serving.ends_s - world.now_s > LIFE_S / 10
            seen.add(each.serving.pem)
        assert world.content is not None
        assert len(world.content.authorities) <= 3
    assert len(seen) >= 12
