"""`make demo`: run a cluster with GPU nodes, operator, gpu-scheduler and webhook, and show sample workloads.

Some are plain workloads, for which the operator finds a node, and one claims exact devices. They are in a
namespace of their own, so that the shipped examples can be applied beside them. Everything is real except the
machines: nodes and pods are simulated. It runs until Ctrl-C, also for kubectl, and leaves nothing behind.
"""

# ruff: noqa: TID251 - a script, outside the pure packages

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.live import Live

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from controlplane import webhooks  # noqa: E402
from controlplane.cluster import OPTIONAL, Cluster, free_port  # noqa: E402
from controlplane.errors import ControlPlaneError  # noqa: E402
from controlplane.nodes import RUN_FOR  # noqa: E402
from scripts import demo_view  # noqa: E402

SYSTEM = "gpu-orchestrator-system"
OPERATOR, SCHEDULER = "gpu-orchestrator-controller-manager", "gpu-scheduler"
WEBHOOK = "gpu-scheduler-webhook"
SAMPLES = ("gpuworkload-sample.yaml", "gpuworkload-claimed.yaml")
NAMESPACE = "demo"
WORKLOADS = "/apis/gpu.warp.dev/v1alpha1/gpuworkloads"
EVENTS = "/apis/events.k8s.io/v1/events"
RUNS_S = 6
HINTS = """
In another terminal:

  export KUBECONFIG={kubeconfig}
  alias kubectl={kubectl}
  kubectl get gpuw -A -o wide
  kubectl describe gpuw my-model -n demo
  kubectl get gclaim -A
  kubectl apply -f {examples}/gpuworkload-sample.yaml
  kubectl apply -f {examples}/claimed-pod.yaml

The logs are in {logs}. Ctrl-C ends everything and leaves nothing behind.
"""

console = Console()
Json = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--gpus", type=int, default=8)
    options = parser.parse_args()
    # Set the handlers even if SIGINT is ignored: a shell ignores it for background commands.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.default_int_handler)
    try:
        with Cluster.start(parts=OPTIONAL) as cluster:
            _play(cluster, options.nodes, options.gpus)
    except KeyboardInterrupt:
        console.print("demo: stopped; nothing is left behind")
    except ControlPlaneError as error:
        console.print(f"demo: {error}", style="red", markup=False)
        return 1
    return 0


def _play(cluster: Cluster, nodes: int, gpus: int) -> None:
    console.print(f"demo: {nodes} nodes with {gpus} GPUs each, a quarter cheap, a quarter for claims …")
    _make_nodes(cluster, nodes, gpus)
    console.print("demo: applying CRDs, roles, policies and the rest (kubectl apply -k config/default) …")
    cluster.kubectl("apply", "-k", str(ROOT / "config/default"))
    # The demo runs them as local processes instead, so that their image need not be built first.
    cluster.kubectl("delete", "deployment", "--all", "-n", SYSTEM)
    with (
        running(cluster, "operator", OPERATOR),
        running(cluster, "scheduler", SCHEDULER, f"--config={settings(cluster, SCHEDULER)}"),
        running(cluster, "webhook", WEBHOOK, *webhook_flags(cluster)),
    ):
        console.print(
            "demo: operator, gpu-scheduler and webhook run under their ServiceAccounts; samples follow …"
        )
        cluster.kubectl("create", "namespace", NAMESPACE)
        cluster.kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=samples())
        names = {
            "kubeconfig": cluster.kubeconfig,
            "kubectl": cluster.tools["kubectl"],
            "examples": ROOT / "examples",
            "logs": cluster.folder,
        }
        console.print(HINTS.format(**names), markup=False, highlight=False, soft_wrap=True)
        if console.is_terminal:
            _show_live(cluster)
        else:
            _print_changes(cluster)


def _make_nodes(cluster: Cluster, nodes: int, gpus: int) -> None:
    """Create the nodes. Those for claims have no device plugin, so that only the gpu-scheduler assigns their
    devices."""
    few = max(1, nodes // 4)
    half = gpus // 2
    cluster.gpu_nodes(max(1, nodes - 2 * few), gpus=gpus)
    cluster.gpu_nodes(few, prefix="cheap-node", gpus=gpus, labels={"gpu-orchestrator/cheap-node": "true"})
    islands = (range(half), range(half, gpus))
    cluster.gpu_nodes(few, prefix="claim-node", gpus=gpus, islands=islands, plugin=False)


def settings(cluster: Cluster, component: str, **more: Any) -> Path:
    """Write the settings that ship for the component, and more, to a file."""
    shown = cluster.api.request("GET", f"/api/v1/namespaces/{SYSTEM}/configmaps/{component}")
    file = cluster.folder / f"{component}.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(shown["data"]["settings.yaml"]) | more))
    return file


def webhook_flags(cluster: Cluster) -> tuple[str, str]:
    """Let the API server call a process instead of the webhook's Service; return the flags of the process."""
    port = free_port()
    webhooks.call_process(cluster.api, WEBHOOK, port)
    file = settings(cluster, WEBHOOK, certificateNames=["127.0.0.1"])
    return f"--config={file}", f"--bind-address=127.0.0.1:{port}"


@contextmanager
def running(cluster: Cluster, component: str, account: str, *flags: str) -> Iterator[None]:
    kubeconfig = cluster.service_account_kubeconfig(SYSTEM, account, valid_s=86_400)
    log = cluster.folder / f"{component}.log"
    command = [
        str(Path(sys.executable).parent / "gpu-orchestrator"),
        component,
        f"--kubeconfig={kubeconfig}",
        "--metrics-bind-address=0",
        "--health-probe-bind-address=0",
        *flags,
    ]
    with log.open("wb") as stderr:
        # A session of its own: Ctrl-C reaches only this script, which then ends the process in order.
        process = subprocess.Popen(command, stderr=stderr, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def samples() -> str:
    """Return the samples, each set to run for some seconds so that the viewer can follow it."""
    texts = [(ROOT / "examples" / name).read_text() for name in SAMPLES]
    objects = [each for text in texts for each in yaml.safe_load_all(text)]
    for each in objects:
        template = each["spec"].setdefault("template", {})
        template.setdefault("metadata", {})["annotations"] = {RUN_FOR: f"{RUNS_S}s"}
    return yaml.safe_dump_all(objects)


def _show_live(cluster: Cluster) -> None:
    with Live(console=console, refresh_per_second=4) as live:
        while True:
            workloads, events = _read(cluster)
            live.update(demo_view.view(workloads, events, home=NAMESPACE, width=console.width))
            time.sleep(0.25)


def _print_changes(cluster: Cluster) -> None:
    """Print a line for each change, for output to a pipe."""
    printed: dict[str, str] = {}
    while True:
        for each in _read(cluster)[0]:
            shown = demo_view.workload_row(each, NAMESPACE)
            name = shown["name"]
            line = f"{name}: {shown['phase'] or 'new'}: {shown['message']}"
            if printed.get(name) != line:
                printed[name] = line
                console.print(line, markup=False, soft_wrap=True)
        time.sleep(0.1)


def _read(cluster: Cluster) -> tuple[list[Json], list[Json]]:
    workloads = cluster.api.request("GET", WORKLOADS)["items"]
    events = [
        event
        for event in cluster.api.request("GET", EVENTS)["items"]
        if event["regarding"].get("kind") == "GPUWorkload" and event.get("eventTime")
    ]
    return workloads, sorted(events, key=lambda event: str(event["eventTime"]))


if __name__ == "__main__":
    sys.exit(main())
