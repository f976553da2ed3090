"""Remember which pod each claim is assigned to, from our decision until the pod's devices are free.

The claim object shows the assignment a little later. Until then this keeps one claim from serving two pods.
"""

from gpu_orchestrator.api import claims
from gpu_orchestrator.api.kubernetes import Pod


class ClaimUsers:
    def __init__(self) -> None:
        self._pod_of: dict[str, Pod] = {}
        self._claim_of: dict[str, str] = {}

    def user_of(self, claim: str) -> Pod | None:
        """Return the pod that uses the claim of this key."""
        return self._pod_of.get(claim)

    def assign(self, pod: Pod) -> bool:
        """Assign the pod's claim to the pod; return False if another pod has it."""
        name = claims.claim_name(pod)
        if not name:
            return True
        claim, uid = f"{pod.metadata.namespace}/{name}", pod.metadata.uid
        user = self._pod_of.setdefault(claim, pod)
        if user.metadata.uid != uid:
            return False
        if self._claim_of.get(uid, claim) != claim:  # the pod's annotation has changed
            self.release(uid)
        self._claim_of[uid] = claim
        return True

    def release(self, uid: str) -> str:
        """End the assignment of the pod's claim. Return the claim's key; empty if there was none."""
        claim = self._claim_of.pop(uid, "")
        if claim:
            del self._pod_of[claim]
        return claim
