"""The store reports exactly what changed."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.api.wire import key
from tests.support.kube_objects import ConfigMap, config_map


def store() -> Store[ConfigMap]:
    return Store({"color": lambda obj: obj.data.get("color", "").split(",")})


def test_first_put_adds_and_later_version_changes() -> None:
    held, first, second = store(), config_map(version=1), config_map(version=2)
    assert held.put(first) == [(None, first)]
    assert held.put(second) == [(first, second)]
    assert held.get("default/x") is second


def test_repeated_and_late_events_change_nothing() -> None:
    held, second = store(), config_map(version=10)
    held.put(second)
    assert held.put(config_map(version=10)) == []
    assert held.put(config_map(version=9)) == []
    assert held.get("default/x") is second


def test_recreated_object_is_two_changes() -> None:
    held, old, new = store(), config_map(uid="1", version=5), config_map(uid="2", version=9)
    held.put(old)
    assert held.put(new) == [(old, None), (None, new)]


def test_late_deletion_of_an_earlier_object_is_ignored() -> None:
    held, new = store(), config_map(uid="2", version=9)
    held.put(new)
    assert held.drop("default/x", uid="1") == []
    assert held.drop("default/x", uid="2") == [(new, None)]
    assert held.drop("default/x", uid="2") == []


def test_replace_reports_deletions_first() -> None:
    held, gone, kept, new = store(), config_map("a"), config_map("b"), config_map("c")
    held.put(gone)
    held.put(kept)
    assert held.replace({key(kept): kept, key(new): new}) == [(gone, None), (None, new)]


def test_list_wins_even_with_a_lower_version() -> None:
    """As after a restore of etcd: states newer than the backup must not stay."""
    held, lost, true = store(), config_map(version=900, color="red"), config_map(version=500, color="blue")
    held.put(lost)
    assert held.replace({key(true): true}) == [(lost, true)]
    assert held.get(key(true)) is true
    assert (held.by("color", "red"), held.by("color", "blue")) == ([], [true])
    assert held.replace({key(true): config_map(version=500, color="blue")}) == []


def test_indices_follow_changes() -> None:
    held = store()
    held.put(config_map("a", color="red,blue"))
    held.put(config_map("b", color="red"))
    assert [obj.metadata.name for obj in held.by("color", "red")] == ["a", "b"]
    held.put(config_map("a", version=2, color="green"))
    assert [obj.metadata.name for obj in held.by("color", "red")] == ["b"]
    assert held.by("color", "blue") == []
    held.drop("default/b")
    assert held.by("color", "red") == []


STATES = st.dictionaries(
    st.sampled_from("abcd"),
    st.tuples(st.integers(1, 3), st.integers(1, 9), st.sampled_from("rgb")),
    max_size=4,
)


@given(st.lists(STATES, min_size=1, max_size=6))
def test_changes_add_up_to_the_last_state(states: list[dict[str, tuple[int, int, str]]]) -> None:
    """A follower of the changes has the same objects as the store, and the index agrees with the objects."""
    held, followed = store(), dict[str, ConfigMap]()
    for step, state in enumerate(states):
        epoch = step * 3 % 7  # versions also fall, as after a restore
        objects = [
            config_map(name, uid=str(uid), version=100 * epoch + version, color=color)
            for name, (uid, version, color) in state.items()
        ]
        for old, new in held.replace({key(obj): obj for obj in objects}):
            if old is not None:
                assert followed.pop(key(old)) == old
            if new is not None:
                assert key(new) not in followed
                followed[key(new)] = new
    assert followed == {key(obj): obj for obj in objects} == {key(obj): obj for obj in held}
    for color in "rgb":
        expected = {key(obj) for obj in objects if obj.data["color"] == color}
        assert {key(obj) for obj in held.by("color", color)} == expected
