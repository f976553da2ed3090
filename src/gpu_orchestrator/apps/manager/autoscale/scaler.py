"""The leader's loop that has workers started and ended: look, decide, store, tell.

A step is stored, with its event, before it is performed, and performed again by each round until it shows.
So a leader that is killed between the two leaves nothing half done, and one that lost its lead stores and
does nothing.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import msgspec
import structlog

from gpu_orchestrator.adapters.provisioners.provisioner import CannotScale, Provisioner, Wish
from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.adapters.store.errors import StoreError
from gpu_orchestrator.adapters.store.store import Store
from gpu_orchestrator.api import session
from gpu_orchestrator.apps.manager.access.audit import Audit, Entry
from gpu_orchestrator.apps.manager.autoscale.decision import Decision, Rules, State, Step, decide
from gpu_orchestrator.apps.manager.autoscale.load import Load, Member, Tasks, load_of
from gpu_orchestrator.apps.manager.autoscale.provisioners import provisioner_of
from gpu_orchestrator.apps.manager.autoscale.schema import ScaleEvent, ScalingStatus
from gpu_orchestrator.apps.manager.dispatch.dispatcher import Dispatcher
from gpu_orchestrator.apps.manager.dispatch.leader import Leader
from gpu_orchestrator.apps.manager.metrics import Metrics
from gpu_orchestrator.apps.manager.tasks.service_times import ServiceTimes

log = structlog.get_logger()
CLOSE_S = 20.0
Send = Callable[[str, str, session.Message], None]


class Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the store keeps: the state, and how long tasks were measured to take."""

    state: State = State()
    service_s: list[tuple[str, str, float]] = []


_stored = msgspec.json.Decoder(Stored)


@dataclass(frozen=True, slots=True)
class ScalerDeps:
    """`send` sends a message to a worker that is connected to the process `api`."""

    settings: Settings
    store: Store
    leader: Leader
    metrics: Metrics
    audit: Audit
    send: Send
    service_times: ServiceTimes


@dataclass(slots=True)
class Scaler:
    deps: ScalerDeps
    trouble: str = ""
    _state: State | None = None
    """None until it was read in this term."""
    _load: Load = Load()  # noqa: RUF009 - frozen
    _decision: Decision | None = None
    _provisioner: Provisioner | None = None
    _is_closed: bool = False
    _working: asyncio.Lock = field(default_factory=asyncio.Lock)
    _rules: Rules = field(init=False)
    _label: tuple[str, str] = field(init=False)

    def __post_init__(self) -> None:
        given = self.deps.settings
        self._rules = Rules(
            least=given.auto_scale_min_workers,
            most=given.max_workers,
            target_s=given.auto_scale_target_wait,
            patience_s=given.auto_scale_patience,
            idle_s=given.auto_scale_idle,
            cool_down_s=given.auto_scale_cool_down,
            step=given.auto_scale_step,
        )
        name, _, value = given.auto_scale_label.partition("=")
        self._label = name, value

    @property
    def is_on(self) -> bool:
        return self.deps.settings.auto_scale_enabled and self.deps.settings.auto_scale_provisioner != "none"

    async def run(self) -> None:
        """Look after the workers while this process leads, until cancelled."""
        if not self.is_on:
            return
        while True:
            await asyncio.sleep(self.deps.settings.auto_scale_interval)
            async with self._working:
                if not self._is_closed:
                    await self._round()

    async def close(self) -> None:
        """Let workers that would be left without a parent leave, while there is a server to tell. A step
        that hangs does not hold the server up: its keepers end what is left when it ends."""
        self._is_closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S), self._working:
                if self._provisioner is not None:
                    await self._provisioner.close()

    async def _round(self) -> None:
        dispatcher = self.deps.leader.dispatcher
        if dispatcher is None:
            self._state = self._decision = None  # the next leader goes on from the store
            return
        try:
            await self._scale(dispatcher)
            self._tell_trouble("")
        except CannotScale as error:
            self._tell_trouble(str(error))
        except StoreError as error:
            log.warning("workers cannot be scaled: the store does not answer", error=str(error))
            self._state = None
        except Exception:
            log.exception("workers cannot be scaled")
            self._state = None

    async def _scale(self, dispatcher: Dispatcher) -> None:
        if self._state is None:
            self._state = await self._read()
        load = self._load = self._look(dispatcher)
        decision = decide(self._state, load, self._rules, self.deps.leader.clock.now())
        for name in decision.ended:  # before they are forgotten here: the flag outlives the worker
            await self.deps.store.workers.control(name, {"draining": "0"})
        if _is_news(self._state, decision) and not await self._save(decision):
            self._state = None  # another process leads
            return
        self._state, self._decision = decision.state, decision
        await self._tell_workers(decision)
        self._provisioner = self._provisioner or await provisioner_of(self.deps.settings)
        online = frozenset(each.name for each in load.members if each.scaled)
        stopping = tuple(each.name for each in decision.state.leaving if each.stopping)
        await self._provisioner.scale(Wish(decision.state.wanted, online, stopping))

    async def _read(self) -> State:
        written = await self.deps.store.scaling.read()
        try:
            stored = _stored.decode(written) if written else Stored()
        except msgspec.MsgspecError as error:
            log.warning("what was stored about scaling cannot be read", error=str(error))
            stored = Stored()
        self.deps.service_times.restore(stored.service_s)
        return stored.state

    async def _save(self, decision: Decision) -> bool:
        events = [self._event(step, decision) for step in decision.steps]
        stored = Stored(decision.state, self.deps.service_times.kept())
        encoded = msgspec.json.encode(stored)
        if not await self.deps.store.scaling.save(encoded, [msgspec.json.encode(each) for each in events]):
            return False
        for each in events:
            self.deps.metrics.scale_decisions.labels(each.action).inc()
            log.info("workers are scaled", **msgspec.to_builtins(each))
            await self.deps.audit.record("changes", self._entry(each))
        return True

    def _event(self, step: Step, decision: Decision) -> ScaleEvent:
        return ScaleEvent(
            action=step.action,
            from_workers=step.before,
            to_workers=step.after,
            workers=list(step.workers),
            reason=step.reason,
            provisioner=self.deps.settings.auto_scale_provisioner,
            waiting_tasks=self._load.waiting,
            running_tasks=self._load.running,
            work_seconds=round(self._load.work_s, 1),
            side_by_side=decision.side_by_side,
            predicted_wait_seconds=_finite(decision.wait_s),
            target_wait_seconds=self._rules.target_s,
        )

    def _entry(self, event: ScaleEvent) -> Entry:
        names = ", ".join(event.workers)
        return Entry(
            at_ms=int(self.deps.leader.clock.now() * 1000),
            key_id="autoscaler",
            owner="",
            action=f"scale {event.action}",
            object=f"{event.from_workers} to {event.to_workers} workers{f': {names}' if names else ''}",
            status=200,
            correlation_id="",
            source="",
        )

    async def _tell_workers(self, decision: Decision) -> None:
        for name in decision.keep:
            await self.deps.store.workers.control(name, {"draining": "0"}, status="online")
        for name in decision.drain:
            known = await self.deps.store.workers.control(name, {"draining": "1"}, status="draining")
            self.deps.send(name, known.api, session.Drain())
        if self._provisioner is None or not self._provisioner.tells_to_leave:
            return
        for each in decision.state.leaving:
            if each.stopping:
                known = await self.deps.store.workers.control(each.name, {"leaving": "1"})
                self.deps.send(each.name, known.api, session.Drain(leave=True))

    def _look(self, dispatcher: Dispatcher) -> Load:
        settings, now = self.deps.settings, self.deps.leader.clock.now()
        estimates = dispatcher.engine.models.estimates
        here = [each for each in dispatcher.workers.values() if each.online and not each.left]
        members = [
            Member(
                each.hello.name,
                _active(dispatcher, each.hello.name),
                draining=each.draining,
                cordoned=each.cordoned,
                scaled=each.hello.labels.get(self._label[0]) == self._label[1],
            )
            for each in here
            if each.hello.pool == settings.auto_scale_pool
        ]
        return load_of(
            [
                Tasks(each.owner, each.kind, each.pool, each.waiting, each.running, each.running_for_s(now))
                for each in dispatcher.tasks.kinds()
            ],
            members,
            pool=settings.auto_scale_pool,
            may_run=dispatcher.deps.quotas.most,
            service_s=self.deps.service_times.of,
            load_s=estimates.load_s,
            loaded={copy.model for each in here for copy in each.copies},
        )

    def _tell_trouble(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            log.warning("workers cannot be started or ended", why=trouble)
            self.deps.metrics.scale_failures.inc()
        self.trouble = trouble

    def gauges(self) -> tuple[int, float]:
        """Return the wanted workers and the predicted wait; 0 and 0 if another process knows."""
        if self._decision is None:
            return 0, 0.0
        return self._decision.state.wanted, self._decision.wait_s

    async def status(self) -> ScalingStatus:
        """Return what is wanted and why: known here if this process leads, else as the leader stored it."""
        state, decision, load = self._state, self._decision, self._load
        why = decision.why if decision else "this process does not lead; ask the leader for its reasons"
        if not self.is_on:
            why = (
                "AUTO_SCALE_PROVISIONER is none"
                if self.deps.settings.auto_scale_enabled
                else "it is switched off"
            )
        if state is None:
            with contextlib.suppress(msgspec.MsgspecError):
                written = await self.deps.store.scaling.read()
                state = _stored.decode(written).state if written else State()
        state = state or State()
        return ScalingStatus(
            enabled=self.is_on,
            provisioner=self.deps.settings.auto_scale_provisioner,
            leader=self.deps.leader.leader,
            wanted_workers=state.wanted,
            online_workers=sorted(each.name for each in load.members if each.scaled) if decision else [],
            draining_workers=[each.name for each in state.leaving if not each.stopping],
            stopping_workers=[each.name for each in state.leaving if each.stopping],
            least_workers=self._rules.least,
            most_workers=self._rules.most,
            why=why,
            trouble=self.trouble,
            waiting_tasks=load.waiting if decision else 0,
            running_tasks=load.running if decision else 0,
            work_seconds=round(load.work_s, 1) if decision else 0.0,
            side_by_side=decision.side_by_side if decision else 0.0,
            predicted_wait_seconds=_finite(decision.wait_s) if decision else None,
            target_wait_seconds=self._rules.target_s,
        )


def _active(dispatcher: Dispatcher, worker: str) -> int:
    """Return how many tasks a worker has or is about to get. Pins of models hold room as well, but are
    none."""
    cluster = dispatcher.engine.cluster
    if worker not in cluster:
        return 0
    return sum(key in dispatcher.tasks for key in cluster.held_on(worker))


def _finite(seconds: float) -> float | None:
    return None if seconds == inf else round(seconds, 1)


def _is_news(state: State, decision: Decision) -> bool:
    """Return whether the next leader should know: not since when workers are idle, which it sees itself."""
    new = decision.state
    return bool(decision.steps) or (new.wanted, new.leaving) != (state.wanted, state.leaving)
