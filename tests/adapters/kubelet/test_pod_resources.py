"""Asking a kubelet over its socket: it answers, refuses, goes away and comes back."""

import socket
from pathlib import Path

import pytest

from gpu_orchestrator.adapters.kubelet import pod_resources
from gpu_orchestrator.adapters.kubelet.pod_resources import GivenDevices, PodResources
from tests.support.kubelet_server import Kubelet, serving

pytestmark = pytest.mark.real
GIVEN = GivenDevices("team", "train", "nvidia.com/gpu", ("GPU-1",))


@pytest.fixture
def kubelet() -> Kubelet:
    made = Kubelet()
    made.given = [("team", "train", [("nvidia.com/gpu", ["GPU-1"])])]
    return made


async def test_devices_are_listed_over_one_connection(kubelet: Kubelet, tmp_path: Path) -> None:
    client = PodResources(str(tmp_path / "kubelet.sock"))
    async with serving(kubelet, tmp_path / "kubelet.sock"):
        assert await client.list() == (GIVEN,)
        kubelet.given = []
        assert await client.list() == ()
        client.close()
    assert kubelet.calls == 2


async def test_thousands_of_devices_are_more_than_one_frame(kubelet: Kubelet, tmp_path: Path) -> None:
    many = [
        ("team", f"pod-{n}", [("nvidia.com/gpu", [f"GPU-{n}-{m}" for m in range(8)])]) for n in range(500)
    ]
    kubelet.given = list(many)
    client = PodResources(str(tmp_path / "kubelet.sock"))
    async with serving(kubelet, tmp_path / "kubelet.sock"):
        found = await client.list()
        client.close()
    assert found is not None
    assert sum(len(each.ids) for each in found) == 4000


async def test_no_socket_is_no_answer(tmp_path: Path) -> None:
    assert await PodResources(str(tmp_path / "kubelet.sock")).list() is None
    assert await PodResources("").list() is None
    (tmp_path / "kubelet.sock").touch()
    assert await PodResources(str(tmp_path / "kubelet.sock")).list() is None


@pytest.mark.parametrize("error", [AssertionError(), NotImplementedError("compressed"), OSError(36, "long")])
async def test_whatever_the_library_raises_is_no_answer(
    kubelet: Kubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It asserts what a server sends."""

    async def fail(self: PodResources) -> bytes:
        raise error

    client = PodResources(str(tmp_path / "kubelet.sock"))
    async with serving(kubelet, tmp_path / "kubelet.sock"):
        with monkeypatch.context() as patch:
            patch.setattr(PodResources, "_call", fail)
            assert await client.list() is None
        assert await client.list() == (GIVEN,)
        client.close()


async def test_socket_with_an_impossible_name_is_no_answer() -> None:
    assert await PodResources("/" + "y" * 300).list() is None


async def test_answer_that_is_too_long_is_no_answer(
    kubelet: Kubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_resources, "LONGEST", 10)
    client = PodResources(str(tmp_path / "kubelet.sock"))
    async with serving(kubelet, tmp_path / "kubelet.sock"):
        assert await client.list() is None
        client.close()


async def test_refusal_is_no_answer_and_the_next_call_works(kubelet: Kubelet, tmp_path: Path) -> None:
    client = PodResources(str(tmp_path / "kubelet.sock"))
    async with serving(kubelet, tmp_path / "kubelet.sock"):
        kubelet.refuses = True
        assert await client.list() is None
        kubelet.refuses = False
        assert await client.list() == (GIVEN,)
        client.close()


async def test_kubelet_restarts(kubelet: Kubelet, tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    client = PodResources(str(path))
    async with serving(kubelet, path):
        assert await client.list() == (GIVEN,)
    path.unlink(missing_ok=True)
    assert await client.list() is None
    async with serving(kubelet, path):
        assert await client.list() == (GIVEN,)
        client.close()


async def test_kubelet_that_does_not_speak_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    client = PodResources(str(path), timeout_s=0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        assert await client.list() is None
