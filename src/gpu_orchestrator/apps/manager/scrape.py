"""What `GET /metrics` shows: the counters of this process, and gauges that are read when it is asked."""

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric

from gpu_orchestrator.apps.manager.access.connections import Connections
from gpu_orchestrator.apps.manager.access.quotas import Quotas
from gpu_orchestrator.apps.manager.autoscale.scaler import Scaler
from gpu_orchestrator.apps.manager.dispatch.leader import Leader
from gpu_orchestrator.apps.manager.events.event_feed import Feed
from gpu_orchestrator.apps.manager.fleet.device_gauges import DeviceGauges
from gpu_orchestrator.apps.manager.fleet.nodes import HALF_OPEN, OPEN
from gpu_orchestrator.apps.manager.metrics import Metrics, gauge
from gpu_orchestrator.apps.manager.siblings import Siblings
from gpu_orchestrator.apps.manager.workers.sessions import Sessions


@dataclass(slots=True)
class Scrape:
    metrics: Metrics
    leader: Leader
    sessions: Sessions
    connections: Connections
    feed: Feed
    scaler: Scaler
    quotas: Quotas
    devices: DeviceGauges
    siblings: Siblings | None = None
    """The other processes of this server, if there are any: their numbers are added."""

    async def text(self) -> bytes:
        """Return all metrics as text: those of this process, or the sums of all its siblings."""
        if self.siblings is not None:
            return await self.siblings.metrics()
        gauges = b"".join(await self.own())
        return generate_latest(self.metrics.registry) + gauges

    async def own(self) -> tuple[bytes, bytes]:
        """Return the gauges of this process, and of all devices if it leads, as text."""
        self.metrics.write()
        dispatcher, devices = self.leader.dispatcher, ""
        if dispatcher is not None:
            devices = await self.devices.text(dispatcher.workers, dispatcher.engine.cluster)
        return generate_latest(self.metrics.gauges), devices.encode()

    def gauges(self) -> Iterable[Metric]:
        yield gauge("workers_connected", [([], len(self.sessions))])
        connections = self.connections
        kinds = [(["known"], float(connections.known)), (["stranger"], float(connections.strangers))]
        yield gauge("http_connections", kinds)
        yield gauge("watchers", [([], len(self.feed))])
        wanted, wait_s = self.scaler.gauges()
        yield gauge("scale_wanted_workers", [([], float(wanted))])
        yield gauge("scale_predicted_wait_seconds", [([], wait_s)])
        dispatcher = self.leader.dispatcher
        yield gauge("leader", [([], float(dispatcher is not None))])
        if dispatcher is None:
            return
        circuits = [each.circuit for each in dispatcher.workers.values()]
        states = (("open", OPEN), ("half_open", HALF_OPEN))
        yield gauge("worker_circuits", [([name], float(circuits.count(state))) for name, state in states])
        depth = dispatcher.depth()
        waiting = [([str(priority)], float(count)) for priority, count in depth.waiting.items()]
        yield gauge("queue_depth", waiting)
        places = [each.is_hold for each in dispatcher.kept_places()]
        held = float(sum(places))
        yield gauge("kept_places", [(["reserved"], len(places) - held), (["hold"], held)])
        for name, counted in (
            ("owner_tasks_queued", depth.waiting_of),
            ("owner_tasks_running", depth.running_of),
            ("owner_gpu_seconds_today", self.quotas.used_s),
        ):
            yield gauge(name, [([owner], float(n)) for owner, n in counted.items()])
