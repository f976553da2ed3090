"""Clusters of only an API server and etcd, lent to one test after the other. They serve PodGroups.

To start one and to install what ships takes seconds of CPU, to empty one a tenth of a second. No controller
runs in it: bound pods stay as they are, and a namespace that a test deletes would stay forever.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from controlplane.cluster import Cluster
from controlplane.toolbox import Toolbox
from tests.support import installation
from tests.support import scheduler_stage as stages

OBJECTS = (
    "/api/v1/nodes",
    "/api/v1/pods",
    f"/apis/coordination.k8s.io/v1/namespaces/{installation.SYSTEM}/leases",
    "/apis/gpu.scheduling/v1/gpuclaims",
    stages.REPORTS,
    stages.QUEUES,
    stages.POD_GROUPS.replace("namespaces/{}/", ""),
)
"""What a scheduler of the next test would take for its own."""


@dataclass
class Bare:
    """A cluster, and what it has when nobody uses it."""

    cluster: Cluster
    contents: frozenset[bytes]
    running: ExitStack

    def empty(self) -> None:
        self.cluster.empty(self.contents, OBJECTS)
        installation.label(self.cluster, installation.SYSTEM, installation.OPEN)


class Lender:
    """Keeps a cluster that was returned for the next test, unless it is to lend only `fresh` ones."""

    def __init__(self, toolbox: Toolbox, *, fresh: bool) -> None:
        self._toolbox, self._fresh = toolbox, fresh
        self._idle: list[Bare] = []

    @contextmanager
    def lend(self) -> Iterator[Cluster]:
        """Lend a cluster with all that ships. After a failure of the test's own fixtures it is closed."""
        made = self._idle.pop() if self._idle else self._start()
        with ExitStack() as unless_returned:
            unless_returned.push(made.running)
            yield made.cluster
            if not self._fresh:
                made.empty()
                unless_returned.pop_all()
                self._idle.append(made)

    def _start(self) -> Bare:
        with ExitStack() as stack:
            cluster = stack.enter_context(
                Cluster.start(toolbox=self._toolbox, node_lifecycle=False, native_gangs=True)
            )
            stages.install(cluster)
            installation.install(cluster, installation.ONLY_CLOSED, without=("webhook",))
            return Bare(cluster, cluster.contents(), stack.pop_all())

    def close(self) -> None:
        for each in self._idle:
            each.running.close()
