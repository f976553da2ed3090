"""The agent's MPS daemons as processes, with the stand-in for NVIDIA's control program."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpu_orchestrator.adapters import foreign_files, keeper
from gpu_orchestrator.adapters.kube.client import Client
from gpu_orchestrator.api.deviceleases import DeviceRef, Hold, Holder
from gpu_orchestrator.api.mps import Daemon
from gpu_orchestrator.apps.agent import mps_daemons
from gpu_orchestrator.apps.agent.metrics import Metrics
from gpu_orchestrator.apps.agent.mps_daemons import MpsDaemons
from gpu_orchestrator.apps.agent.mps_leases import DeviceLeases
from gpu_orchestrator.apps.agent.mps_plan import GRACE_S, STEADY_S
from tests.support import mps_program
from tests.support.agent_builders import NODE, Server
from tests.support.mps_program import is_there
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.real
A, B = Daemon("team", (0,), 1024, 250, ("GPU-0",)), Daemon("team", (1,), 2048, 0, ("GPU-1",))


class Known(DeviceLeases):
    """Leases that the test sets. The scenarios have an API server."""

    held: tuple[Daemon, ...] = ()
    are_known = True

    def __init__(self, client: Client, node: str, namespace: str, changed: Callable[[], None]) -> None:
        super().__init__(client, node, namespace, changed)
        self.asked = asyncio.Event()

    def follow(self, uuids: object, group: asyncio.TaskGroup) -> None:
        pass

    def holds(self) -> list[Hold]:
        self.asked.set()
        return [
            Hold(
                DeviceRef(NODE, device, uuid),
                Holder(each.folder, "pod", each.namespace, each.share, each.memory_mib),
                exclusive=False,
            )
            for each in self.held
            for device, uuid in zip(each.devices, each.uuids, strict=True)
        ]


class Site:
    """Daemons below a folder of the test; the report is written at once. `later` seconds have passed."""

    def __init__(self, folder: Path) -> None:
        self.root, self.later = folder / "run", 0.0
        self.told, self.written = asyncio.Event(), list[str]()
        self.metrics = Metrics(NODE)
        self.daemons = MpsDaemons(
            self.root,
            self._leases,
            clock=lambda: time.monotonic() + self.later,
            written=lambda: self.written,
            told=self._on_told,
            metrics=self.metrics,
            most=4,
        )

    def _leases(self, changed: Callable[[], None]) -> Known:
        self.leases = Known(Client(Server()), NODE, "ours", changed)
        return self.leases

    def _on_told(self) -> None:
        assert self.daemons.report is not None
        self.written = self.daemons.report.folders
        self.daemons.check()  # as the agent does when it has written
        self.told.set()

    @asynccontextmanager
    async def running(self, *held: Daemon, driver: str = "580.1") -> AsyncIterator["Site"]:
        self.leases.held = held
        self.daemons.follow({0: "GPU-0", 1: "GPU-1"}, driver)
        task = asyncio.create_task(self.daemons.run())
        try:
            yield self
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await self.daemons.close()

    def hold(self, *held: Daemon) -> None:
        self.leases.held = held
        self.daemons.check()

    async def seen(self) -> None:
        """Wait until it is taken in what is held now. Before that, no grace period has begun."""
        self.leases.asked.clear()
        self.daemons.check()
        await self.leases.asked.wait()

    async def lists(self, *daemons: Daemon) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.daemons.report is None or self.written != sorted(each.folder for each in daemons):
                self.told.clear()
                await self.told.wait()

    @property
    def failures(self) -> float:
        return self.metrics.registry.get_sample_value("gpu_agent_errors_total", {"what": "mps"}) or 0

    def folder(self, daemon: Daemon) -> Path:
        return self.root / "owned" / daemon.folder

    def pid(self, daemon: Daemon) -> int:
        return int((self.folder(daemon) / "pipe" / "control").read_text())


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(int(PATIENCE_S * 100)):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", mps_program.path_with(tmp_path))
    return mps_program.install(tmp_path)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.usefixtures("program")
async def test_daemon_of_a_lease_listens_with_its_ceilings(site: Site) -> None:
    others = set(keeper.descendants(os.getpid()))
    async with site.running(A):
        await site.lists(A)
        pipe = site.folder(A) / "pipe"
        assert (pipe / "told").read_text().splitlines() == list(A.commands)
        assert (pipe / "visible").read_text() == "GPU-0"
        assert pipe.stat().st_mode & 0o7777 == 0o755
        assert not (site.root / "check").exists()
        pids = set(keeper.descendants(os.getpid())) - others
        assert len(pids) == 3, "the keeper, the daemon and its server"
    await mps_program.gone(pids)


@pytest.mark.usefixtures("program")
async def test_driver_that_meets_clients_in_the_shm_of_the_node_keeps_no_daemons(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps_daemons, "RETRY_S", 0.01)
    with capture_logs() as logs:
        async with site.running(A, driver="575.57.08"):
            await until(lambda: site.failures > 1)
            assert site.daemons.report is None
            site.daemons.follow({0: "GPU-0", 1: "GPU-1"}, "580.65.06")
            await site.lists(A)
    assert [each["error"] for each in logs if "error" in each] == [
        "driver 575.57.08 is older than 580; update it"
    ]


@pytest.mark.usefixtures("program")
async def test_daemon_leaves_the_report_first_and_ends_later(site: Site) -> None:
    async with site.running(A, B):
        await site.lists(A, B)
        pid = site.pid(A)
        site.hold(B)
        await site.lists(B)
        assert is_there(f"/proc/{pid}")
        site.later += GRACE_S
        site.daemons.check()
        await mps_program.gone({pid})
        await until(lambda: not is_there(str(site.folder(A))))
        assert is_there(f"/proc/{site.pid(B)}")


@pytest.mark.usefixtures("program")
async def test_daemon_that_ended_starts_again_where_containers_look_for_it(site: Site) -> None:
    async with site.running(A):
        await site.lists(A)
        before, place = site.pid(A), (site.folder(A) / "pipe").stat().st_ino
        site.later += STEADY_S
        mps_program.kill(str(site.folder(A) / "pipe"))
        await site.lists()
        await site.lists(A)
        assert site.pid(A) != before
        assert (site.folder(A) / "pipe").stat().st_ino == place
        assert site.failures == 1


@pytest.mark.usefixtures("program")
async def test_namespace_with_many_kinds_of_shares_leaves_room_for_others(site: Site) -> None:
    many = [Daemon("greedy", (0,), mib, 1, ("GPU-0",)) for mib in range(1, 9)]
    async with site.running(*many, driver="580.1"):
        await site.lists(*many[:2])
        assert site.daemons.report is not None
        assert site.daemons.report.refused == sorted(each.folder for each in many[2:])
        site.hold(*many, A)
        await site.lists(*many[:2], A)
        assert site.failures == 1, "told once"
        site.hold(*many[1:3], A)
        await site.lists(many[1], A)
        site.later += GRACE_S
        site.daemons.check()
        await site.lists(*many[1:3], A)
        assert site.daemons.report.refused == []


@pytest.mark.usefixtures("program")
async def test_what_a_killed_agent_left_is_taken_over_or_removed(site: Site) -> None:
    for daemon in (A, B):
        (site.folder(daemon) / "pipe").mkdir(parents=True)
        (site.folder(daemon) / "pipe" / "control").write_text("0")
        (site.folder(daemon) / "pipe" / "old").touch()
        (site.folder(daemon) / "shm").mkdir()  # of an older agent
    by_kubelet = site.root / "owned" / "pipe"
    by_kubelet.mkdir()
    place = (site.folder(A) / "pipe").stat().st_ino
    async with site.running(A):
        await site.lists(A)
        assert (site.folder(A) / "pipe").stat().st_ino == place
        assert not (site.folder(A) / "pipe" / "old").exists()
        site.later += GRACE_S
        site.daemons.check()
        await until(lambda: not is_there(str(site.folder(B))))
        assert by_kubelet.exists()


async def test_without_the_program_nothing_is_reported(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    await site.daemons.run()
    assert site.daemons.report is None


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("part", ["run", "run/owned"])
async def test_where_the_folders_cannot_be_made_shares_are_counted_only(
    site: Site, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps_daemons, "RETRY_S", 0.01)
    (tmp_path / part).parent.mkdir(exist_ok=True)
    (tmp_path / part).touch()
    with capture_logs() as logs:
        async with site.running(A):
            await until(lambda: site.failures > 2)
            assert site.daemons.report is None
            (tmp_path / part).unlink()
            await site.lists(A)
    said = [each["error"] for each in logs if each["event"].startswith("MPS does not work here")]
    assert len(said) == 1, "once"
    assert str(tmp_path / part) in said[0]


async def test_where_no_daemon_starts_nothing_is_reported(site: Site, program: Path) -> None:
    (program.parent / "refuses").touch()
    async with site.running(A):
        await until(lambda: site.failures > 0)
        assert site.daemons.report is None
        assert not site.folder(A).exists()


@pytest.mark.usefixtures("program")
async def test_folder_that_a_client_spoiled_costs_its_own_daemon_only(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = foreign_files.empty

    def refuse(folder: Path) -> None:
        if folder.is_relative_to(site.folder(A)) and (site.folder(A) / "pipe" / "spoiled").exists():
            raise PermissionError("not yours")
        empty(folder)

    async with site.running(A, B):
        await site.lists(A, B)
        other = site.pid(B)
        (site.folder(A) / "pipe" / "spoiled").mkdir()
        monkeypatch.setattr(foreign_files, "empty", refuse)
        mps_program.kill(str(site.folder(A) / "pipe"))
        await site.lists(B)
        await until(lambda: site.failures >= 2)
        site.hold(B)
        await site.seen()
        before = site.failures
        site.later += GRACE_S
        site.daemons.check()
        await until(lambda: site.failures > before)
        assert is_there(str(site.folder(A))), "it is told, and tried again"
        monkeypatch.setattr(foreign_files, "empty", empty)
        site.later += GRACE_S
        site.daemons.check()
        await until(lambda: not is_there(str(site.folder(A))))
        assert site.pid(B) == other, "nobody else noticed"
