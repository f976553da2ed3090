"""What must hold at every revision, checked by replaying the history of pods, leases and claims.

I1 no device has two exclusive holders. I2 shares and memory of a device add up to no more than it has, and no
exclusive holder stands beside a shared one. I4 a bound pod has exactly as many devices as it asked for, on
its own node. I5 a device is held for a live pod, or for `spare_s` at most. I6 no bind without the leases, and
none of them goes while the pod lives; a claim serves one live pod, and says the node that pod is on. I7 what
an ended pod held is free within `free_s`.
"""

from dataclasses import dataclass, field

from tests.support.object_history import Change, History, Json
from tests.support.scheduler_stage import holders

ENDED = ("Succeeded", "Failed")
DEVICE_MIB = 81_920


@dataclass(frozen=True, slots=True)
class Hold:
    """What a live, bound pod has of a device."""

    exclusive: bool
    share: int = 0
    memory_mib: int = 0


@dataclass
class World:
    """The state at one revision, and what was found wrong on the way to it."""

    leases: bool
    pods: dict[str, Json] = field(default_factory=dict)
    devices: dict[str, dict[str, Hold]] = field(default_factory=dict)
    holders: dict[str, set[str]] = field(default_factory=dict)
    claims: dict[str, Json] = field(default_factory=dict)
    serving: dict[str, str] = field(default_factory=dict)
    idle_since: dict[tuple[str, str], float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    binds: dict[str, int] = field(default_factory=dict)

    def play(self, change: Change, *, spare_s: float, free_s: float) -> None:
        match change.kind:
            case "pods":
                self._pod(change)
            case "leases":
                self._lease(change, spare_s=spare_s, free_s=free_s)
            case "claims":
                self._claim(change)

    def _say(self, change: Change, what: str) -> None:
        self.wrong.append(f"at revision {change.revision}: {what}")

    # --- pods ----------------------------------------------------------------------------------------------

    def _pod(self, change: Change) -> None:
        pod = change.object
        uid = pod["metadata"]["uid"]
        before = self.pods.get(uid)
        if change.gone or pod.get("status", {}).get("phase") in ENDED:
            self._ended(change, uid)
            return
        self.pods[uid] = pod
        was_bound = bool(before and before["spec"].get("nodeName"))
        if pod["spec"].get("nodeName") and not was_bound and _allocated(pod):
            self.binds[uid] = self.binds.get(uid, 0) + 1
            self._bound(change, pod)

    def _ended(self, change: Change, uid: str) -> None:
        self.pods.pop(uid, None)
        for held in self.devices.values():
            held.pop(uid, None)
        for claim in [name for name, server in self.serving.items() if server == uid]:
            del self.serving[claim]
        for lease, uids in self.holders.items():
            if uid in uids:
                self.idle_since[lease, uid] = change.at

    def _bound(self, change: Change, pod: Json) -> None:
        meta, node = pod["metadata"], pod["spec"]["nodeName"]
        uid, name = meta["uid"], f"{meta['namespace']}/{meta['name']}"
        told_node, _, ids = _allocated(pod).rpartition(":")
        spots = [f"gpu-{node}-{device}" for device in ids.split(",")]
        if told_node != node:
            self._say(change, f"I4 {name} is on {node} and was told {told_node}")
        hold, count = self._asked(pod)
        if len(set(spots)) != count or len(spots) != count:
            self._say(change, f"I4 {name} asked for {count} devices and has {ids}")
        for spot in spots:
            self._give(change, spot, uid, hold, name)
        self._serve(change, pod)

    def _asked(self, pod: Json) -> tuple[Hold, int]:
        asks = pod["metadata"]["annotations"]
        if gpus := asks.get("gpu.scheduling/gpus"):
            return Hold(exclusive=True), int(gpus)
        named = asks.get("gpu.scheduling/claim") or asks.get("gpu.scheduling/claim-template")
        devices = self.claims[f"{pod['metadata']['namespace']}/{named}"]["spec"]["devices"]
        if devices.get("exclusivity") != "Shared":
            return Hold(exclusive=True), devices["count"]
        return Hold(False, devices.get("share", 0), devices.get("memoryMiB", 0)), devices["count"]

    def _give(self, change: Change, spot: str, uid: str, hold: Hold, name: str) -> None:
        held = self.devices.setdefault(spot, {})
        if self.leases and uid not in self.holders.get(spot, set()):
            self._say(change, f"I6 {name} was bound to {spot} and its lease is {self.holders.get(spot)}")
        if held and (hold.exclusive or any(each.exclusive for each in held.values())):
            self._say(change, f"I1 {name} was given {spot}, which {sorted(held)} have")
        held[uid] = hold
        share, memory = sum(h.share for h in held.values()), sum(h.memory_mib for h in held.values())
        if share > 1000 or memory > DEVICE_MIB:
            self._say(change, f"I2 {spot} is oversold: share {share}, memory {memory} MiB")

    def _serve(self, change: Change, pod: Json) -> None:
        meta = pod["metadata"]
        if named := meta["annotations"].get("gpu.scheduling/claim"):
            claim = f"{meta['namespace']}/{named}"
            if claim in self.serving:
                self._say(change, f"I6 claim {claim} serves two pods: {self.serving[claim]}, {meta['uid']}")
            self.serving[claim] = meta["uid"]

    # --- leases and claims ---------------------------------------------------------------------------------

    def _lease(self, change: Change, *, spare_s: float, free_s: float) -> None:
        meta = change.object["metadata"]
        if meta.get("labels", {}).get("gpu.scheduling/managed") != "true":
            return
        name = meta["name"]
        before = self.holders.get(name, set())
        after = set() if change.gone else holders(change.object)
        for uid in after - before:
            if uid not in self.devices.get(name, {}):
                self.idle_since[name, uid] = change.at
        for uid in before - after:
            if uid in self.devices.get(name, {}):
                self._say(change, f"I6 the lease {name} of the live pod {uid} went")
            self._check_idle(change, name, uid, free_s if uid not in self.pods else spare_s)
        self.holders[name] = after

    def _check_idle(self, change: Change, name: str, uid: str, limit_s: float) -> None:
        since = self.idle_since.pop((name, uid), None)
        if since is not None and change.at - since > limit_s:
            self._say(
                change, f"I5/I7 {name} was held {change.at - since:.1f} s for {uid}, which had no use of it"
            )

    def _claim(self, change: Change) -> None:
        claim = change.object
        meta, status = claim["metadata"], claim.get("status", {})
        name = f"{meta['namespace']}/{meta['name']}"
        if change.gone:
            self.claims.pop(name, None)
            return
        self.claims[name] = claim
        pod = self.pods.get(status.get("podUID", ""))
        if status.get("phase") == "Bound" and pod and pod["spec"].get("nodeName") != status.get("nodeName"):
            self._say(change, f"I6 claim {name} says {status.get('nodeName')}, its pod is elsewhere")


def check(history: History, *, leases: bool = True, spare_s: float = 35.0, free_s: float = 40.0) -> World:
    """Replays the history; raises with everything that was wrong."""
    world = World(leases)
    for kind, objects in history.start.items():
        for found in objects:
            world.play(Change(0, 0.0, kind, False, found), spare_s=1e9, free_s=1e9)
    world.wrong.clear()
    world.idle_since.clear()
    for change in history.changes:
        world.play(change, spare_s=spare_s, free_s=free_s)
    assert not world.wrong, "\n".join(world.wrong[:20])
    return world


def _allocated(pod: Json) -> str:
    found: str = pod["metadata"].get("annotations", {}).get("gpu.scheduling/allocated", "")
    return found
