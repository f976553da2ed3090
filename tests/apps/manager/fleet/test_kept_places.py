"""What is said of places that are kept, and whom they keep out."""

from typing import Any

import pytest

from gpu_orchestrator.apps.manager.fleet import kept_places
from gpu_orchestrator.apps.manager.fleet.kept_places import KeptPlace, Room
from gpu_orchestrator.core.request import Request
from tests.support.builders import cluster, node, request

NOW = 1000.0


def place(*workers: str, **fields: Any) -> KeptPlace:
    rooms = tuple(
        Room(f"kept/g/g-{at}", worker, (0, 1), exclusive=True, memory_mib=0)
        for at, worker in enumerate(workers or ("w",))
    )
    known: dict[str, Any] = {"name": "g", "owner": "ann", "lane": 0, "until_s": NOW + 60.0, "told": "14:05"}
    return KeptPlace(**{**known, "is_hold": False, "rooms": rooms, **fields})


def task(key: str = "other", **fields: Any) -> Request:
    return request(key, 1, **{"priority": 50, "run_s": 300.0, **fields})


@pytest.mark.parametrize(
    ("asked", "keeps_out"),
    [
        pytest.param(task(), True, id="ends later"),
        pytest.param(task(run_s=60.0), False, id="ends before"),
        pytest.param(task(priority=75), False, id="of a higher band"),
        pytest.param(task("g"), False, id="its owner"),
        pytest.param(task("g-1"), False, id="a member of its gang"),
        pytest.param(task("h-1"), True, id="a member of another gang"),
    ],
)
def test_place_keeps_out(asked: Request, keeps_out: bool) -> None:
    assert place().keeps_out(asked, NOW) == keeps_out


def test_owner_is_told_where_and_when() -> None:
    assert place().words == "its place on w is kept: it begins by 14:05, or as soon as those there end"
    assert place("v", "w").words.startswith("its places on 2 workers are kept: ")
    assert " is kept until 14:05, since " in place(is_hold=True).words
    assert kept_places.words_of([place()], "g-1") == place().words
    assert kept_places.words_of([place()], "h-1") == ""


def test_others_are_told_no_names_of_another_owner() -> None:
    assert "is kept for g, which begins by 14:05" in place().words_for("ann")
    told = place().words_for("bob")
    assert "is kept for another owner's task" in told
    assert "ann" not in told


def test_what_is_kept_is_not_free_for_others_and_the_cluster_is_left_alone() -> None:
    whole = cluster(node("w", 2))
    assert kept_places.beside(whole, [place()]).free_gpus("w") == 0
    assert kept_places.beside(whole, [place("gone")]) is whole
    assert whole.free_gpus("w") == 2


def test_what_a_leader_wrote_is_read_until_it_is_old() -> None:
    written = kept_places.encoded([place()], NOW)
    assert kept_places.read(written, NOW + 1.0) == (place(),)
    assert kept_places.read(written, NOW + kept_places.STALE_S) == ()
    assert kept_places.read(b"", NOW) == ()
    assert kept_places.read(b'{"places": 1}', NOW) == ()
