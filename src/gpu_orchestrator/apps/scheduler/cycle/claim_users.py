"""Which pod each claim serves, as far as we have decided it: from the decision until what it held is free.

The claim itself says so a little later; until then this is what keeps it from serving two.
"""

from gpu_orchestrator.api import claims
from gpu_orchestrator.api.kubernetes import Pod


class ClaimUsers:
    def __init__(self) -> None:
        self._pod: dict[str, Pod] = {}
        self._claim: dict[str, str] = {}

    def user_of(self, claim: str) -> Pod | None:
        """Return the pod that uses the claim of this key."""
        return self._pod.get(claim)

    def take(self, pod: Pod) -> bool:
        """Let the pod's claim serve it; False if it serves another."""
        name = claims.claim_name(pod)
        if not name:
            return True
        claim, uid = f"{pod.metadata.namespace}/{name}", pod.metadata.uid
        user = self._pod.setdefault(claim, pod)
        if user.metadata.uid != uid:
            return False
        self._claim[uid] = claim
        return True

    def drop(self, uid: str) -> str:
        """The pod's claim serves it no longer. Gives the claim's key, empty if there was none."""
        claim = self._claim.pop(uid, "")
        if claim:
            del self._pod[claim]
        return claim
