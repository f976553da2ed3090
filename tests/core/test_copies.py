"""Which copies of models go when room is needed: by table, and against an oracle that tries all sets."""

from dataclasses import replace
from itertools import chain, combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.core.copies import Copy, Device, beyond, held_mib, value, victims

NOW = 1000.0


def copy(model: str, mib: int = 1000, **fields: object) -> Copy:
    known = Copy(model, (0,), mib, load_s=10.0, loaded_at=0.0, used_at=NOW)
    return replace(known, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("copies", "short", "gone"),
    [
        pytest.param([copy("a"), copy("b", used_at=0.0)], 500, "b", id="the one used longest ago"),
        pytest.param([copy("a", load_s=60.0), copy("b")], 500, "b", id="the one that loads faster"),
        pytest.param([copy("a", 8000), copy("b")], 500, "a", id="the one that holds more"),
        pytest.param([copy("a", uses=9.0), copy("b")], 500, "b", id="the one used less often"),
        pytest.param([copy("a", busy=True), copy("b", uses=9.0)], 500, "b", id="never a busy one"),
        pytest.param([copy("a", pinned=True), copy("b", uses=9.0)], 500, "b", id="never a pinned one"),
        pytest.param([copy("a", busy=True), copy("b", pinned=True)], 500, None, id="none may go"),
        pytest.param([copy("a"), copy("b")], 0, "", id="nothing is short"),
        pytest.param([copy("a"), copy("b")], 1500, "ab", id="one is not enough"),
        pytest.param(
            [copy("a", load_s=1.0), copy("b", 2000, load_s=9.0)], 1500, "b", id="no more than needed"
        ),
        pytest.param([copy("a", devices=(1,)), copy("b", uses=9.0)], 500, "b", id="only where it is short"),
        pytest.param([copy("a", loaded_at=NOW - 1), copy("b", uses=9.0)], 500, "b", id="the young one last"),
    ],
)
def test_victims(copies: list[Copy], short: int, gone: str | None) -> None:
    found = victims(copies, {0: short}, NOW, 5.0)
    assert (None if found is None else "".join(sorted(each.model for each in found))) == gone


@pytest.mark.parametrize(
    ("most", "most_mib", "gone"),
    [
        pytest.param(3, 10_000, "", id="within both"),
        pytest.param(2, 10_000, "a", id="one too many"),
        pytest.param(9, 1_500, "ab", id="too much"),
        pytest.param(0, 0, "ab", id="a busy one stays"),
    ],
)
def test_beyond_bounds(most: int, most_mib: int, gone: str) -> None:
    copies = [copy("a"), copy("b", uses=2.0), copy("c", uses=0.1, busy=True)]
    assert "".join(each.model for each in beyond(copies, NOW, most=most, most_mib=most_mib)) == gone


@given(st.integers(0, 2**32), st.integers(0, 7))
def test_victims_are_enough_none_is_spare_and_an_answer_is_found_if_there_is_one(
    seed: int, size: int
) -> None:
    chance = Random(seed)
    copies = [
        Copy(
            str(number),
            tuple(sorted(chance.sample(range(3), chance.randint(1, 3)))),
            chance.randint(0, 5),
            load_s=chance.uniform(0, 9),
            used_at=chance.uniform(0, NOW),
            uses=chance.uniform(0, 9),
            busy=chance.random() < 0.2,
            pinned=chance.random() < 0.2,
        )
        for number in range(size)
    ]
    short: dict[Device, int] = {device: chance.randint(-2, 8) for device in range(chance.randint(1, 3))}

    def enough(chosen: tuple[Copy, ...]) -> bool:
        gained = {device: sum(c.mib for c in chosen if device in c.devices) for device in short}
        return all(gained[device] >= mib for device, mib in short.items())

    may_go = [each for each in copies if each.may_go]
    sets = list(chain.from_iterable(combinations(may_go, n) for n in range(len(may_go) + 1)))
    found = victims(copies, short, NOW)
    assert (found is not None) == any(enough(each) for each in sets)
    if found is not None:
        assert enough(found)
        assert set(found) <= set(may_go)
        assert not any(enough(tuple(c for c in found if c is not out)) for out in found)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), max_size=8), st.integers(0, 8))
def test_bounds_hold_for_what_may_go_and_the_least_valuable_goes(
    drawn: list[tuple[int, bool, bool]], most: int
) -> None:
    copies = [
        copy(str(number), mib, busy=busy, pinned=pinned, uses=float(number + 1))
        for number, (mib, busy, pinned) in enumerate(drawn)
    ]
    gone = beyond(copies, NOW, most=most, most_mib=20)
    stay = [each for each in copies if each not in gone]
    is_within = len(stay) <= most and sum(map(held_mib, stay)) <= 20
    assert is_within or not any(each.may_go for each in stay)
    assert all(each.may_go for each in gone)
    assert all(value(a, NOW) <= value(b, NOW) for a in gone for b in stay if b.may_go)
