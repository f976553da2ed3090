"""Readers get our own writes at once, and only until the watch has caught up."""

import pytest

from gpu_orchestrator.adapters.kube.informer import versions
from gpu_orchestrator.adapters.kube.informer.overlay import Overlay
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from tests.support.operator_builders import workload


class Watched:
    """A store, and the version that its watch has reached."""

    def __init__(self) -> None:
        self.store: Store[GPUWorkload] = Store({"model": lambda each: [each.spec.model_name]})
        self.resource_version = "5"
        self.overlay = Overlay(self)

    def show(self, obj: GPUWorkload) -> None:
        self.store.put(obj)
        self.resource_version = obj.metadata.resource_version

    def versions(self) -> list[str]:
        return [
            each.metadata.resource_version for each in self.overlay.by("model", "bert-large", ["team/bert"])
        ]


def at(version: str, name: str = "bert", uid: str = "uid-bert") -> GPUWorkload:
    return workload(name, meta={"resourceVersion": version, "uid": uid})


def test_write_is_returned_until_the_watch_passes_it() -> None:
    watched = Watched()
    watched.show(at("5"))
    watched.overlay.keep(at("8"))
    assert watched.overlay.get("team/bert") == at("8")
    watched.resource_version = "7"  # another object changed
    assert watched.overlay.get("team/bert") == at("8")
    watched.show(at("9"))
    assert watched.overlay.get("team/bert") == at("9")


def test_created_object_is_found_by_name_before_the_watch_has_it() -> None:
    watched = Watched()
    assert watched.versions() == []
    watched.overlay.keep(at("8"))
    assert watched.versions() == ["8"]


def test_object_deleted_after_our_write_is_gone() -> None:
    watched = Watched()
    watched.overlay.keep(at("8"))
    watched.resource_version = "9"  # the deletion
    assert watched.overlay.get("team/bert") is None


def test_older_list_does_not_hide_our_write() -> None:
    watched = Watched()
    watched.overlay.keep(at("8"))
    watched.store.replace({})
    watched.resource_version = "6"
    assert watched.overlay.get("team/bert") == at("8")
    watched.resource_version = ""  # listing again
    assert watched.overlay.get("team/bert") == at("8")


def test_write_older_than_the_watch_is_not_kept() -> None:
    watched = Watched()
    watched.show(at("9"))
    watched.overlay.keep(at("8"))
    found = watched.overlay.get("team/bert")
    assert found
    assert found.metadata.resource_version == "9"


def test_forgotten_write_is_not_returned() -> None:
    watched = Watched()
    watched.show(at("5"))
    watched.overlay.keep(at("8"))
    watched.overlay.forget("team/bert")
    assert watched.overlay.get("team/bert") == at("5")


@pytest.mark.parametrize(
    ("old", "new", "is_kept"),
    [
        pytest.param(at("5"), at("7"), True, id="an older state"),
        pytest.param(at("5"), at("8"), False, id="our write"),
        pytest.param(at("5"), at("9"), False, id="a newer state"),
        pytest.param(at("5"), None, False, id="its deletion"),
        pytest.param(at("5", uid="before"), None, True, id="deletion of an earlier object of this name"),
        pytest.param(None, at("9", uid="after"), False, id="a later object of this name"),
        pytest.param(None, at("9", name="other"), True, id="another object"),
    ],
)
def test_write_is_dropped_when_the_watch_catches_up(
    old: GPUWorkload | None, new: GPUWorkload | None, is_kept: bool
) -> None:
    watched = Watched()
    watched.overlay.keep(at("8"))
    watched.overlay.observe(old, new)
    assert (watched.overlay.get("team/bert") == at("8")) is is_kept


@pytest.mark.parametrize(
    ("version", "than", "expected"),
    [
        pytest.param("10", "9", True, id="numbers compare as numbers"),
        pytest.param("9", "10", False, id="older"),
        pytest.param("9", "9", False, id="the same"),
        pytest.param("9", "", True, id="nothing seen yet"),
        pytest.param("b", "a", True, id="not numbers: another"),
        pytest.param("a", "a", False, id="not numbers: the same"),
    ],
)
def test_is_newer(version: str, than: str, expected: bool) -> None:
    assert versions.is_newer(version, than) is expected
