"""`gpu-orchestrator defrag`: which pods would have to move so that a shape finds room, and moving them."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpu_orchestrator.api import names
from gpu_orchestrator.cli import output
from gpu_orchestrator.cli.options import AsJson, Whole

if TYPE_CHECKING:
    from gpu_orchestrator.apps.scheduler.defrag.plan import Wish
    from gpu_orchestrator.cli.defrag_run import Options

MOST_GPUS = 64
MOST_PODS = 512


def defrag(
    *,
    gpus: Annotated[Whole, Parameter(metavar="N")] = 0,
    nodes: Annotated[Whole, Parameter(metavar="N")] = 1,
    pod: Annotated[str, Parameter(metavar="NAMESPACE/NAME")] = "",
    model: Annotated[str, Parameter(metavar="MODEL")] = "",
    selector: Annotated[tuple[str, ...], Parameter(metavar="KEY=VALUE")] = (),
    min_bandwidth: Annotated[Whole, Parameter(metavar="GBPS")] = 0,
    policy: Annotated[str, Parameter(metavar="POLICY")] = "",
    strategy: Annotated[str, Parameter(metavar="STRATEGY")] = "",
    dry_run: bool = False,
    apply: bool = False,
    wait: Annotated[Whole, Parameter(metavar="SECONDS")] = 300,
    json_: AsJson = False,
    kubeconfig: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    context: str = "",
    scheduler_name: str = names.SCHEDULER,
    lease_namespace: str = names.NAMESPACE,
) -> None:
    """Say which pods would have to move so that GPUs which are free here and there become room for a pod.
    Changes nothing without `--apply`.

    The fewest pods are chosen, and of equally few those that lose the fewest GPU-seconds. A pod moves only if
    its owner allows it (annotation gpu.scheduling/movable: "true"), a controller makes it again, and it fits
    elsewhere. Disruption budgets hold.

    Parameters
    ----------
    gpus
        Make room for a pod with this number of GPUs.
    nodes
        Make room for this number of such pods; of the size of a node, that is the number of nodes.
    pod
        Make room for this pod that waits, with all that it asks for, and for all of its gang.
    model
        GPUs of this model only.
    selector
        Nodes with this label only; may be given several times.
    min_bandwidth
        What all pairs of a pod's GPUs must have, in GB/s.
    policy
        How the GPUs of a node are chosen: contiguous, spread, packed.
    strategy
        How nodes are ranked where several have room already: leastLoaded, binPack and others.
    dry_run
        Change nothing, as without `--apply`.
    apply
        Cordon the nodes that get room, evict what has to move, wait until it runs elsewhere, and open the
        nodes again.
    wait
        How long to wait for that.
    kubeconfig
        Use the cluster of this kubeconfig; by default KUBECONFIG, the pod's own files or ~/.kube/config.
    context
        The context to use, if not the current one.
    scheduler_name
        Move pods with this schedulerName.
    lease_namespace
        The namespace of the Leases of devices.
    """
    from gpu_orchestrator.apps.scheduler.defrag.plan import Wish
    from gpu_orchestrator.cli.defrag_run import Options

    if apply and dry_run:
        output.fail("--apply and --dry-run exclude each other; leave one out", code=2)
    labels = tuple(_label(each) for each in selector)
    wish = Wish(gpus, nodes, pod, model, labels, min_bandwidth, policy, strategy)
    _check(wish, wait)
    options = Options(kubeconfig, context, scheduler_name, lease_namespace, apply, wait, json_)
    sys.exit(_run(wish, options))


def _label(text: str) -> tuple[str, str]:
    name, is_given, value = text.partition("=")
    if not (name and is_given):
        output.fail(f"--selector is {text!r}; write a label as KEY=VALUE", code=2)
    return name, value


def _check(wish: "Wish", wait_s: int) -> None:
    if (wish.gpus != 0) == bool(wish.pod):
        output.fail("say what to make room for: --gpus N, or --pod NAMESPACE/NAME", code=2)
    for option, number, most in (
        ("--gpus", wish.gpus, MOST_GPUS),
        ("--nodes", wish.count, MOST_PODS),
        ("--wait", wait_s, 86_400),
    ):
        if not (1 <= number <= most or (option == "--gpus" and wish.pod)):
            output.fail(f"{option} is {number}; write a number from 1 to {most}", code=2)
    if wish.min_bandwidth_gbps < 0:
        output.fail("--min-bandwidth is below 0", code=2)


def _run(wish: "Wish", options: "Options") -> int:
    """Return the exit code. SIGTERM ends it as Ctrl-C does: cordoned nodes are opened again."""
    from gpu_orchestrator.cli import defrag_run

    async def main() -> int:
        running = asyncio.current_task()
        if running is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        return await defrag_run.run(wish, options)

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        output.fail("ended by SIGTERM", code=143)
