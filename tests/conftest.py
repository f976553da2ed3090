"""What every test may use: a real control plane, the scale of a scenario, and which tier a test belongs to.

A test that uses a fixture of the control plane (`REAL_FIXTURES`) is marked `real` by itself, so that
`make test-fast` leaves it out. A test that starts other servers or processes needs the mark in its file.
"""

import asyncio
import gc
import os
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import settings

from controlplane.cluster import OPTIONAL, Cluster, share_ports
from controlplane.guard import Guard
from controlplane.realnode import machine
from controlplane.realnode.node import RealNode
from controlplane.toolbox import Toolbox
from tests.support import namespaces, side_by_side, warm
from tests.support.resume_ledger import Ledger
from tests.support.scale import Scale
from tests.support.summary import FIGURE, Summary

REAL_FIXTURES = {"cluster", "new_cluster", "real_node", "toolbox"}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpu-orchestrator")
    group.addoption(
        "--scale", choices=("test", "accept"), default="test", help="how large scenarios are played"
    )
    group.addoption(
        "--ledger", type=Path, help="folder that remembers what passed, to take up an interrupted run"
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    # Otherwise looptime makes a loop for the first test that needs none, and nobody closes it.
    asyncio.set_event_loop(None)
    # No example has a time to keep: the machine may be busy. New ones are tried by `make accept` alone.
    settings.register_profile("test", deadline=None, derandomize=True)
    settings.register_profile("accept", deadline=None, print_blob=True)
    settings.load_profile(config.getoption("--scale"))
    if folder := config.getoption("--ledger"):
        config.pluginmanager.register(Ledger(folder, config), "ledger")
    config.pluginmanager.register(Summary(), "summary")
    # The Go programs of the control plane may have more memory, and collect their garbage less often.
    os.environ.setdefault("GOGC", "400")
    warm.allow()
    if worker := side_by_side.worker():
        share_ports(worker.number, worker.of)
    # A shell lets what it starts in the background ignore Ctrl-C, and programs under test would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep Python's garbage collector from looking at modules and test items again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if REAL_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("real")
    if side_by_side.worker():
        items.sort(key=lambda item: side_by_side.rank(item.nodeid))


running_planes = pytest.StashKey[list[pytest.FixtureDef[Any]]]()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    if fixturedef.argname in side_by_side.PLANES:
        request.config.stash.setdefault(running_planes, []).append(fixturedef)
    return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """End the control planes of this worker when the others have taken all other tests that need one: idle,
    they would take CPU until the end of the run. A test that needs one all the same starts it again."""
    if (
        isinstance(item, pytest.Function)
        and side_by_side.worker()
        and side_by_side.is_past_planes(item.nodeid)
    ):
        for fixture in item.config.stash.setdefault(running_planes, []):
            fixture.finish(item._request)  # type: ignore[arg-type]
        item.config.stash[running_planes].clear()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> side_by_side.Groups:
    config.option.loadscopereorder = False
    return side_by_side.Groups(config, log)


@pytest.fixture(scope="session", autouse=True)
def nothing_outlives_the_run() -> Iterator[None]:
    """Whatever a test starts inherits a mark, and ends with this run even if that is killed."""
    guard = Guard(Path(tempfile.mkdtemp(prefix="gpu-orchestrator-")))
    os.environ.update(guard.environment)
    yield
    for name in guard.environment:
        del os.environ[name]
    guard.end()


@pytest.fixture(scope="session")
def scale(pytestconfig: pytest.Config) -> Scale:
    """`scale(test=2, accept=20)`: one scenario, played small in `make test` and in full in `make accept`."""
    return Scale(pytestconfig.getoption("--scale"))


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """`figure("1,000 nodes Ready after 9 s")`: something measured on the way, shown when the run ends."""
    return lambda sentence: record_property(FIGURE, sentence)


@pytest.fixture(scope="session")
def toolbox() -> Toolbox:
    """The binaries of the control plane; builds those that are missing."""
    return Toolbox()


@pytest.fixture(scope="session")
def cluster(toolbox: Toolbox) -> Iterator[Cluster]:
    """One whole cluster for the session. Shared: work in your own `namespace` and on your own nodes."""
    with Cluster.start(parts=OPTIONAL, toolbox=toolbox) as running:
        yield running


NewCluster = Callable[..., Cluster]


@pytest.fixture
def new_cluster(toolbox: Toolbox) -> Iterator[NewCluster]:
    """`new_cluster(parts=...)`: a cluster of the test's own, to break. Closed when the test ends."""
    with ExitStack() as stack:

        def start(parts: tuple[str, ...] = (), *, node_lifecycle: bool = True) -> Cluster:
            return stack.enter_context(
                Cluster.start(parts=parts, toolbox=toolbox, node_lifecycle=node_lifecycle)
            )

        yield start


@pytest.fixture(scope="module")
def real_node(request: pytest.FixtureRequest) -> Iterator[RealNode]:
    """A node of the shared cluster that runs containers on this machine, for the tests of one file. What
    names it when the file is through, such as leases of devices, is of no use to the next: it has another.

    Where the machine forbids it, its tests are skipped with the reason; in CI they fail instead."""
    if reason := machine.obstacle():
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse(f"no real node can run on this machine: {reason}")
    cluster: Cluster = request.getfixturevalue("cluster")  # not before: a skipped test needs none
    with cluster.real_node(f"real-{uuid4().hex[:6]}") as node:
        yield node


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A fresh namespace in the shared cluster."""
    with namespaces.fresh(cluster) as name:
        yield name
