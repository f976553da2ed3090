"""Command line of the toolbox and the cluster, for make: `python -m controlplane build`, `run`, `up`."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from controlplane import nodes, toolbox
from controlplane.cluster import OPTIONAL, Cluster
from controlplane.errors import ControlPlaneError
from controlplane.realnode import machine, runc


def main(words: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(words)
    try:
        if options.command == "build":
            build(options.tools, options.kubernetes)
        elif options.command == "run":
            run(options.tool, options.words)
        else:
            up(options.nodes, options.gpus)
    except ControlPlaneError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m controlplane", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    tools = commands.add_parser("build", help="build the missing binaries of the control plane")
    tools.add_argument(
        "tools", nargs="*", help="which (default: those a cluster needs, and a real node if one can run here)"
    )
    tools.add_argument("--kubernetes", metavar="1.35", help="of an older Kubernetes (default: the newest)")
    command = commands.add_parser("run", help="run one of the binaries, such as kubectl or helm")
    command.add_argument("tool")
    command.add_argument("words", nargs=argparse.REMAINDER, help="what it is given")
    cluster = commands.add_parser("up", help="run a cluster until Ctrl-C")
    cluster.add_argument("--nodes", type=_count, default=8)
    cluster.add_argument("--gpus", type=_count, default=8)
    return parser


def _count(word: str) -> int:
    if not word.isdigit():
        raise argparse.ArgumentTypeError(f"'{word}' is not a whole number of 0 or more")
    return int(word)


def build(tools: Sequence[str], kubernetes: str | None = None) -> None:
    chosen = toolbox.Toolbox.of(kubernetes) if kubernetes else toolbox.Toolbox()
    has_node = not tools and not kubernetes and not machine.obstacle()
    found = chosen.get(*(tools or toolbox.USUAL), *(toolbox.NODE if has_node else ()))
    if has_node:
        runc.get(chosen.cache)
    folder = os.path.commonpath([path.parent for path in found.values()])
    print(f"{len(found)} binaries of the control plane are ready in {folder}")


def run(tool: str, words: Sequence[str]) -> NoReturn:
    """Become this tool, after building it if it is missing."""
    path = toolbox.Toolbox().get(tool)[tool]
    os.execv(path, [str(path), *words])  # noqa: S606 - a program of ours, and no shell


def up(count: int, gpus: int) -> None:
    """Start a cluster, print commands to try, and wait for Ctrl-C."""
    # Set the handlers even if SIGINT is ignored: a shell ignores it for background commands.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.default_int_handler)
    started = time.monotonic()
    _print("starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok …")
    with Cluster.start(parts=OPTIONAL) as cluster:
        _print(f"creating {count} nodes with {gpus} GPUs each …")
        # As in a server with two groups of linked GPUs, so that the examples with a bandwidth find some.
        cluster.gpu_nodes(count, gpus=gpus, islands=(range(gpus // 2), range(gpus // 2, gpus)))
        _print(f"ready after {time.monotonic() - started:.1f} s, {cluster.memory_mb:.0f} MB in all\n")
        print(cluster.kubectl("get", "nodes", "-L", "nvidia.com/gpu.product,nvidia.com/gpu.count"))
        print(_hints(cluster))
        try:
            _wait_for_a_part_to_end(cluster)
        except KeyboardInterrupt:
            _print("stopping …")
    _print("stopped; nothing is left behind")


def _hints(cluster: Cluster) -> str:
    return HINTS.format(
        kubeconfig=cluster.kubeconfig,
        kubectl=cluster.tools["kubectl"],
        run_for=nodes.RUN_FOR,
        root=Path(__file__).parents[1],
        ours=Path(sys.executable).with_name("gpu-orchestrator"),
    )


HINTS = """\
In another terminal:

  export KUBECONFIG={kubeconfig}
  alias kubectl={kubectl}
  kubectl get nodes
  kubectl create job hello --image=busybox -- true
  kubectl get jobs,pods

The nodes are simulated (kwok) and run no containers: a Job's pod ends after one second, or after the time
in its annotation {run_for}, and a Deployment only pretends to run. So run the operator and the
gpu-scheduler yourself, each in a terminal of its own:

  {kubectl} --kubeconfig {kubeconfig} apply -k {root}/config/local
  {ours} operator --kubeconfig {kubeconfig} --metrics-bind-address 0 --health-probe-bind-address 0
  {ours} scheduler --kubeconfig {kubeconfig} --metrics-bind-address 0 --health-probe-bind-address 0

and give them work: kubectl apply -f {root}/examples/gpuworkload-sample.yaml; kubectl get gpuw -o wide
Ctrl-C ends the cluster and leaves nothing behind.
"""


def _wait_for_a_part_to_end(cluster: Cluster) -> None:
    while True:
        for part in cluster.parts.values():
            if not part.is_running:
                raise ControlPlaneError(f"{part.name} ended unexpectedly; its log ends:\n{part.last_words()}")
        time.sleep(0.5)


def _print(sentence: str) -> None:
    print(f"cluster: {sentence}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
