"""Check invariants at every revision by replaying the history of pods, leases and claims.

I1 No device has two exclusive holders.
I2 Shares and memory of a device never exceed it, and no exclusive holder shares a device.
I4 A bound pod has exactly as many devices as it requested, on its own node.
I5 A lease is held for a live pod, or for at most `spare_s`.
I6 No bind without the leases, and none is deleted while the pod lives; a claim serves one live pod and names
   the node of that pod.
I7 The leases of an ended pod are gone within `free_s`.
"""

from dataclasses import dataclass, field

from tests.support.object_history import Change, History, Json
from tests.support.scheduler_stage import holders

ENDED = ("Succeeded", "Failed")
DEVICE_MIB = 81_920


@dataclass(frozen=True, slots=True)
class Hold:
    """The part of a device that a live, bound pod has."""

    exclusive: bool
    share: int = 0
    memory_mib: int = 0


@dataclass
class World:
    """The state at one revision, and the violations found up to it."""

    leases: bool
    pods: dict[str, Json] = field(default_factory=dict)
    devices: dict[str, dict[str, Hold]] = field(default_factory=dict)
    holders: dict[str, set[str]] = field(default_factory=dict)
    claims: dict[str, Json] = field(default_factory=dict)
    claim_users: dict[str, str] = field(default_factory=dict)
    idle_since: dict[tuple[str, str], float] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    binds: dict[str, int] = field(default_factory=dict)

    def play(self, change: Change, *, spare_s: float, free_s: float) -> None:
        match change.kind:
            case "pods":
                self._pod(change)
            case "leases":
                self._lease(change, spare_s=spare_s, free_s=free_s)
            case "claims":
                self._claim(change)

    def _violation(self, change: Change, what: str) -> None:
        self.violations.append(f"at revision {change.revision}: {what}")

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
        for claim in [name for name, user in self.claim_users.items() if user == uid]:
            del self.claim_users[claim]
        for lease, uids in self.holders.items():
            if uid in uids:
                self.idle_since[lease, uid] = change.at

    def _bound(self, change: Change, pod: Json) -> None:
        meta, node = pod["metadata"], pod["spec"]["nodeName"]
        uid, name = meta["uid"], f"{meta['namespace']}/{meta['name']}"
        allocated_node, _, ids = _allocated(pod).rpartition(":")
        leases = [f"gpu-{node}-{device}" for device in ids.split(",")]
        if allocated_node != node:
            self._violation(change, f"I4 {name} is on {node} and was allocated {allocated_node}")
        hold, count = self._requested(pod)
        if len(set(leases)) != count or len(leases) != count:
            self._violation(change, f"I4 {name} requested {count} devices and has {ids}")
        for lease in leases:
            self._give(change, lease, uid, hold, name)
        self._assign_claim(change, pod)

    def _requested(self, pod: Json) -> tuple[Hold, int]:
        annotations = pod["metadata"]["annotations"]
        if gpus := annotations.get("gpu.scheduling/gpus"):
            return Hold(exclusive=True), int(gpus)
        named = annotations.get("gpu.scheduling/claim") or annotations.get("gpu.scheduling/claim-template")
        devices = self.claims[f"{pod['metadata']['namespace']}/{named}"]["spec"]["devices"]
        if devices.get("exclusivity") != "Shared":
            return Hold(exclusive=True), devices["count"]
        return Hold(False, devices.get("share", 0), devices.get("memoryMiB", 0)), devices["count"]

    def _give(self, change: Change, lease: str, uid: str, hold: Hold, name: str) -> None:
        held = self.devices.setdefault(lease, {})
        if self.leases and uid not in self.holders.get(lease, set()):
            self._violation(
                change, f"I6 {name} was bound to {lease} and its lease is {self.holders.get(lease)}"
            )
        if held and (hold.exclusive or any(each.exclusive for each in held.values())):
            self._violation(change, f"I1 {name} was given {lease}, which {sorted(held)} already hold")
        held[uid] = hold
        share, memory = sum(h.share for h in held.values()), sum(h.memory_mib for h in held.values())
        if share > 1000 or memory > DEVICE_MIB:
            self._violation(change, f"I2 {lease} is oversold: share {share}, memory {memory} MiB")

    def _assign_claim(self, change: Change, pod: Json) -> None:
        meta = pod["metadata"]
        if named := meta["annotations"].get("gpu.scheduling/claim"):
            claim = f"{meta['namespace']}/{named}"
            if claim in self.claim_users:
                self._violation(
                    change, f"I6 claim {claim} serves two pods: {self.claim_users[claim]}, {meta['uid']}"
                )
            self.claim_users[claim] = meta["uid"]

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
                self._violation(change, f"I6 the lease {name} of the live pod {uid} was deleted")
            self._check_idle(change, name, uid, free_s if uid not in self.pods else spare_s)
        self.holders[name] = after

    def _check_idle(self, change: Change, name: str, uid: str, limit_s: float) -> None:
        since = self.idle_since.pop((name, uid), None)
        if since is not None and change.at - since > limit_s:
            self._violation(
                change, f"I5/I7 {name} was held {change.at - since:.1f} s for {uid}, which did not use it"
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
            self._violation(change, f"I6 claim {name} names {status.get('nodeName')}, its pod is elsewhere")


def check(history: History, *, leases: bool = True, spare_s: float = 35.0, free_s: float = 40.0) -> World:
    """Replay the history and return the final state; fail with the violations found."""
    world = World(leases)
    for kind, objects in history.start.items():
        for found in objects:
            world.play(Change(0, 0.0, kind, False, found), spare_s=1e9, free_s=1e9)
    world.violations.clear()
    world.idle_since.clear()
    for change in history.changes:
        world.play(change, spare_s=spare_s, free_s=free_s)
    assert not world.violations, "\n".join(world.violations[:20])
    return world


def _allocated(pod: Json) -> str:
    found: str = pod["metadata"].get("annotations", {}).get("gpu.scheduling/allocated", "")
    return found
