"""Pods to check again because of what others have changed. Kept by the coordinator.

One label of a namespace, one new rule, or one claim can concern every pod that waits. So the pods are checked
for a moment at a time, and the rest waits for the next tick. A decision about one of the rest is carried out
only if the pod still asks for the same.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from gpu_orchestrator.adapters.breath import SLICE_S
from gpu_orchestrator.adapters.kube.informer.store import Store
from gpu_orchestrator.api.kubernetes import Pod
from gpu_orchestrator.api.wire import key


class Rechecks:
    """`check` is called with each pod as it is then; `wake` when `check_some` is to be called soon."""

    def __init__(
        self,
        pods: Store[Pod],
        check: Callable[[Pod], None],
        *,
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._pods, self._check, self._clock, self._wake = pods, check, clock, wake
        self._left: OrderedDict[str, Pod] = OrderedDict()
        self._is_checking = False

    def __len__(self) -> int:
        return len(self._left)

    def __contains__(self, uid: str) -> bool:
        return uid in self._left

    def add(self, pods: Iterable[Pod]) -> None:
        """Check these pods in this order, after those that are left from before: who changes a claim again
        and again gets no more than a moment per tick."""
        was_idle = not self._left and not self._is_checking
        for pod in pods:
            self._left.setdefault(pod.metadata.uid, pod)
        if was_idle:
            self.check_some()

    def discard(self, uid: str) -> None:
        """Leave out a pod that is being checked for another reason."""
        self._left.pop(uid, None)

    def check_some(self) -> None:
        """Check pods for a moment; the others wait for the next tick."""
        until, self._is_checking = self._clock() + SLICE_S, True
        try:
            while self._left and self._clock() < until:
                self._check_one(*self._left.popitem(last=False))
        finally:
            self._is_checking = False
            if self._left:
                self._wake()

    def _check_one(self, uid: str, pod: Pod) -> None:
        current = self._pods.get(key(pod))
        if current is not None and current.metadata.uid == uid:
            self._check(current)
