"""Our own writes are seen at once, and only until the watch has caught up."""

from gpu_orchestrator.adapters.kube.store import Store
from gpu_orchestrator.api.gpuworkload import GPUWorkload
from gpu_orchestrator.apps.operator.fresh import Fresh
from tests.apps.operator.builders import workload


class Watched:
    """A store, and how far the watch that fills it has come."""

    def __init__(self) -> None:
        self.store: Store[GPUWorkload] = Store({"model": lambda each: [each.spec.model_name]})
        self.version = "5"
        self.fresh = Fresh(self.store, lambda: self.version)

    def see(self, obj: GPUWorkload) -> None:
        self.store.put(obj)
        self.version = obj.metadata.resource_version

    def versions(self) -> list[str]:
        return [
            each.metadata.resource_version for each in self.fresh.by("model", "bert-large", ["team/bert"])
        ]


def at(version: str, name: str = "bert") -> GPUWorkload:
    return workload(name, meta={"resourceVersion": version})


def test_an_answer_is_shown_until_the_watch_shows_it() -> None:
    watched = Watched()
    watched.see(at("5"))
    watched.fresh.keep(at("8"))
    assert watched.fresh.get("team/bert") == at("8")
    watched.version = "7"  # something else happened
    assert watched.fresh.get("team/bert") == at("8")
    watched.see(at("9"))
    assert watched.fresh.get("team/bert") == at("9")


def test_what_was_just_made_is_found_by_its_name() -> None:
    watched = Watched()
    assert watched.versions() == []
    watched.fresh.keep(at("8"))
    assert watched.versions() == ["8"]


def test_what_was_deleted_after_our_write_is_gone() -> None:
    watched = Watched()
    watched.fresh.keep(at("8"))
    watched.version = "9"  # the deletion
    assert watched.fresh.get("team/bert") is None


def test_a_list_that_is_older_than_our_write_does_not_hide_it() -> None:
    watched = Watched()
    watched.fresh.keep(at("8"))
    watched.store.replace({})
    watched.version = "6"
    assert watched.fresh.get("team/bert") == at("8")
    watched.version = ""  # listing again
    assert watched.fresh.get("team/bert") == at("8")


def test_an_answer_that_the_watch_has_overtaken_is_not_kept() -> None:
    watched = Watched()
    watched.see(at("9"))
    watched.fresh.keep(at("8"))
    found = watched.fresh.get("team/bert")
    assert found
    assert found.metadata.resource_version == "9"
