"""Fixtures of the scenarios: the operator with a cluster for all its tests, stages for the gpu-scheduler.

That cluster ends with the last scenario of a worker: an idle control plane takes a twentieth of a core.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from uuid import uuid4

import pytest

from controlplane.cluster import OPTIONAL, Cluster
from controlplane.process import Process
from controlplane.toolbox import Toolbox
from gpu_orchestrator.api import names
from tests.support import installation
from tests.support import scheduler_stage as stages
from tests.support.bare_clusters import Lender
from tests.support.operator_process import ACCOUNT, SYSTEM, Operator, Site
from tests.support.scale import Scale
from tests.support.scheduler_stage import Stage

NewOperator = Callable[..., Operator]
UNRAISABLE = "pytest.PytestUnraisableExceptionWarning"
CUT_OFF = f"ignore:Exception ignored in. <(function )?(socket|asyncio|_Selector):{UNRAISABLE}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings about sockets of killed peers.

    The tests here kill processes, sometimes in the middle of a TLS handshake. asyncio leaves the test's end
    of such a connection to the garbage collector, which then warns in whichever test is running."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings(CUT_OFF))


@pytest.fixture(scope="package")
def operator_cluster(toolbox: Toolbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a cluster with all that config/default installs, where a real webhook is called. Tests start
    operator and gpu-scheduler as processes. Its own cluster, because the operator counts every node in it.
    None of our requests may be refused until the last test."""
    with Cluster.start(parts=OPTIONAL, toolbox=toolbox) as cluster:
        installation.install(cluster, installation.ALL_BUT_OPEN)
        with installation.webhook(cluster, tmp_path_factory.mktemp("webhook")):
            yield cluster
        assert installation.refused(cluster) == []


@pytest.fixture(scope="package")
def account(operator_cluster: Cluster) -> Path:
    """Return a kubeconfig of the shipped ServiceAccount."""
    return operator_cluster.service_account_kubeconfig(SYSTEM, ACCOUNT)


@pytest.fixture
def deep_json() -> Iterator[None]:
    """Let the test itself encode and decode JSON that is nested deeper than Python allows by default. Ask for
    it before `site`, which reads all objects at its end."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    yield
    sys.setrecursionlimit(before)


@pytest.fixture
def site(operator_cluster: Cluster) -> Iterator[Site]:
    made = Site(operator_cluster)
    yield made
    made.close()


@pytest.fixture(scope="module")
def operator(
    request: pytest.FixtureRequest, account: Path, tmp_path_factory: pytest.TempPathFactory, scale: Scale
) -> Iterator[Operator]:
    """Run one operator for all tests of a module that do not disturb it. In `make test` a module may shorten
    what it waits for: `WAITS = {"podless_s": 12}`."""
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    waits = scale(test=getattr(request.module, "WAITS", None), accept=None)
    with Operator(account, "--no-leader-elect", log=log, waits=waits) as running:
        yield running


@pytest.fixture(scope="package")
def scheduler_account(operator_cluster: Cluster) -> Path:
    """Return a kubeconfig of the shipped ServiceAccount of the gpu-scheduler."""
    return operator_cluster.service_account_kubeconfig(SYSTEM, names.SCHEDULER)


@pytest.fixture(scope="module")
def scheduler(
    operator_cluster: Cluster, scheduler_account: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Process]:
    """Run one gpu-scheduler for the tests of a module. Devices are free one second after their pod ended."""
    made = Stage(operator_cluster, "default", tmp_path_factory.mktemp("scheduler"))
    yield made.scheduler(kubeconfig=scheduler_account, leaderElect=False, releaseSeconds=1, **stages.REFUSE)
    made.close()


@pytest.fixture
def new_operator(account: Path, tmp_path: Path) -> NewOperator:
    """Return `new_operator(*flags, kubeconfig=...)`, which makes an operator for this test, not yet
    started."""

    def make(*flags: str, kubeconfig: Path | None = None) -> Operator:
        return Operator(kubeconfig or account, *flags, log=tmp_path / "operator.log")

    return make


@pytest.fixture
def stage(
    request: pytest.FixtureRequest, guarded_cluster: Cluster, namespace: str, tmp_path: Path
) -> Iterator[Stage]:
    """Yield a stage for this test in the shared cluster: its own namespace, leases, nodes and scheduler, with
    the rights of the shipped one. The policies are in force unless the test is marked `open`."""
    name = f"{uuid4().hex[:6]}-gpu-scheduler"
    account = installation.scheduler_account(guarded_cluster, name, space=namespace)
    made = Stage(guarded_cluster, namespace, tmp_path, namespace, name, account=account)
    close_unless_open(request, made)
    yield made
    made.close()


@pytest.fixture(scope="session")
def guarded_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """Install all that ships in the shared cluster; the policies are in force where a test wants them. None
    of our requests may be refused until the last test."""
    stages.install(cluster)
    installation.install(cluster, installation.ONLY_CLOSED, without=("webhook",))
    yield cluster
    assert installation.refused(cluster) == []


def close_unless_open(request: pytest.FixtureRequest, stage: Stage) -> None:
    """Put the policies into force in the namespaces of the stage, unless the test is marked `open`."""
    if request.node.get_closest_marker("open") is None:
        for each in {stage.namespace, stage.system}:
            installation.label(stage.cluster, each, installation.CLOSED)
        stage.closed = True


@pytest.fixture(scope="package")
def bare_clusters(toolbox: Toolbox, scale: Scale) -> Iterator[Lender]:
    """Lend clusters of only an API server and etcd. `make accept` fills them too full to be emptied."""
    made = Lender(toolbox, fresh=scale(test=False, accept=True))
    yield made
    made.close()


@pytest.fixture
def new_bare_stage(
    request: pytest.FixtureRequest, bare_clusters: Lender, tmp_path: Path
) -> Iterator[Callable[[], Stage]]:
    """Return `new_bare_stage()`, which takes a cluster of only an API server and etcd, for races, crashes
    and large numbers: bound pods stay as they are."""
    with ExitStack() as stack:

        def make() -> Stage:
            cluster, space = stack.enter_context(bare_clusters.lend()), f"race-{uuid4().hex[:6]}"
            cluster.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": space}})
            account = cluster.service_account_kubeconfig(SYSTEM, names.SCHEDULER)
            made = Stage(cluster, space, Path(mkdtemp(dir=tmp_path)), static=True, account=account)
            close_unless_open(request, made)
            stack.callback(lambda: _close(made))
            return made

        yield make


def _close(stage: Stage) -> None:
    stage.close()
    assert installation.refused(stage.cluster) == []


@pytest.fixture
def bare_stage(new_bare_stage: Callable[[], Stage]) -> Stage:
    return new_bare_stage()
