"""How a claimed pod must look at its creation, and what its later containers must not have.

The webhook fills all of it in; while that is down, a pod that lacks it is refused here. Our own pods ask for
nothing and are not looked at.
"""

from gpu_orchestrator.api import claims, names, sharing
from gpu_orchestrator.api.admission_policies import cel
from gpu_orchestrator.api.admission_policies.policy import Policy, Resources, Validation

MOST_CONTAINERS = 64
MOST_VARIABLES = 2000
MOST_VOLUMES = 256
"""Larger pods would exhaust what the API server spends on one policy, and be refused without a reason."""

RUNTIME_MOUNTS = "nvidia-container-devices"
"""A mount of this name tells NVIDIA's runtime which GPUs to show, in place of the variable."""
RUNTIME_NOTES = (
    "cdi.k8s.io/",
    "io.kubernetes.cri-o.Devices",
    "devices.crio.io",
    "devices.nri.io",
    "mounts.nri.io",
    "noderesource.dev",
)
"""An annotation with one of these in its name adds devices or mounts: by CDI, CRI-O or the injector of
NRI."""
RUNTIMES = ("containerd", "crio", "docker", "rancher")
NODE_FILES = (
    "/dev/",
    "/proc/",
    "/sys/",
    "/run/",
    "/var/run/",
    "/var/lib/kubelet/",
    "/etc/cdi/",
    "/etc/kubernetes/",
    "/etc/nvidia-container-runtime/",
    *(f"{folder}/{name}/" for folder in ("/etc", "/var/lib") for name in RUNTIMES),
    "/var/lib/containers/",
    "/opt/cni/",
)
"""Files of the node by which a container reaches devices: their own, the sockets of container runtimes and
device plugins, the root of NVIDIA's driver (/run/nvidia/driver, with a /dev of its own), descriptions of CDI
devices, static pods, what runtimes are told and where they keep the files of containers, and programs that
they start."""
CAPABILITIES = ("ALL", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "BPF", "DAC_READ_SEARCH")
"""Rights by which a container reaches devices that it was not given: NVIDIA's runtime hands the controls of
MIG to one with SYS_ADMIN that asks for them, DAC_READ_SEARCH opens any file of the node by its handle, and
the others change the kernel. Runtimes ignore case, and `CAP_`."""
GPUS_PATTERN = f"^0{{0,70}}([1-9]|[1-5][0-9]|6[0-{claims.MAX_GPUS % 10}])$"
NO_GPUS = (
    f"(object.metadata.?annotations[?'{names.GPUS}'].orValue('1').matches('^0{{1,71}}$') && "
    f"object.metadata.?annotations[?'{names.GANG}'].orValue('') != '')"
)
"""True for a member of a gang that asks for none, as the launcher of a job."""
CLAIMED = {"claimed": cel.is_claimed("object")}
_GPUS = f"object.metadata.annotations[?'{names.GPUS}'].orValue('1')"
_NAMED = (
    f"object.metadata.annotations[?'{names.CLAIM}'].or("
    f"object.metadata.annotations[?'{names.CLAIM_TEMPLATE}']).orValue('gpus')"
)
_DEVICE_ENV = cel.text_list(names.DEVICE_ENV)
_FILL = f"the webhook does it; is it down? kubectl get deploy {names.WEBHOOK} -n {names.NAMESPACE}"


def _ours(variable: str) -> str:
    """Return a condition that is true for one of our variables that comes from our annotation."""
    return " || ".join(
        f"({variable}.name == '{name}' && {variable}.?valueFrom.?fieldRef.?fieldPath.orValue('') == "
        f"\"metadata.annotations['{annotation}']\")"
        for name, annotation in names.DEVICE_ENV.items()
    )


def adds_devices(key: str) -> str:
    """Return a condition that is true if an annotation of this name adds devices to a container."""
    return " || ".join(f"{key}.contains('{each}')" for each in RUNTIME_NOTES)


def _added(annotations: str) -> str:
    """Return an expression for the message that names those annotations."""
    return (
        f"{annotations}.filter(key, {adds_devices('key')}).join(', ') + ' adds devices past the "
        "gpu-scheduler; remove it'"
    )


def confined(containers: str) -> str:
    """Return a condition that is true if each container has each device variable once, from our annotation.
    `envFrom` needs no look: what `env` says of a name wins."""
    return (
        f"{containers}.all(container, container.?env.orValue([]).filter(each, each.name in {_DEVICE_ENV})"
        f".size() == {len(names.DEVICE_ENV)} && {_DEVICE_ENV}.all(name, "
        f"container.env.exists_one(each, each.name == name && ({_ours('each')}))))"
    )


def _is_gpu(name: str) -> str:
    domains = " || ".join(f"{name}.startsWith('{each}')" for each in names.GPU_DOMAINS)
    others = " || ".join(f"{name}.contains('{each}')" for each in names.NOT_GPUS)
    return f"({domains}) && !({others})"


def _mounts_own_daemon(containers: str) -> str:
    """Return a condition that is true if the containers mount nothing of the folders of MPS daemons but those
    of the daemon that the gpu-scheduler names, and cannot write there."""
    env, mounts = "container.?env.orValue([])", "container.?volumeMounts.orValue([])"
    is_other = f"each.name != '{sharing.VOLUME}'"
    return (
        f"!object.spec.?volumes.orValue([]).exists(each, each.name == '{sharing.VOLUME}' && "
        f"has(each.hostPath)) || {containers}.all(container, {mounts}.all(each, {is_other}) || ("
        f"{mounts}.all(each, {is_other} || each.?subPathExpr.orValue('') == '{sharing.PIPES}' && "
        "each.?readOnly.orValue(false)) && "
        f"{env}.exists(each, each.name == '{sharing.FOLDER_ENV}') && "
        f"{env}.all(each, each.name != '{sharing.FOLDER_ENV}' || "
        "each.?valueFrom.?fieldRef.?fieldPath.orValue('') == "
        f"\"metadata.annotations['{names.MPS_FOLDER}']\")))"
    )


def _container_checks(containers: str, which: str) -> tuple[Validation, ...]:
    """Return what holds for all containers; `which` names them in the messages."""
    return (
        Validation(
            confined(containers),
            f"every container of a pod that asks for GPUs takes {', '.join(names.DEVICE_ENV)} from the pod's "
            f"annotations by fieldRef, and from nowhere else ({which}); without this it would see GPUs of "
            f"others. {_FILL}",
            reason="Invalid",
        ),
        Validation(
            f"{containers}.all(container, !container.?securityContext.?privileged.orValue(false))",
            "a privileged container sees all GPUs of its node, so a pod that asks for GPUs has none "
            f"({which}); set "
            "privileged: false",
        ),
        Validation(
            f"{containers}.all(container, container.?securityContext.?capabilities.?add.orValue([])"
            f".all(each, !(each.upperAscii().replace('CAP_', '') in {cel.text_list(CAPABILITIES)})))",
            f"with one of the capabilities {', '.join(CAPABILITIES)} a container reaches GPUs of others, so "
            f"a pod that asks for GPUs adds none of them ({which}); remove it from "
            "securityContext.capabilities.add",
        ),
        Validation(
            f"{containers}.all(container, container.?volumeDevices.orValue([]).size() == 0)",
            f"a pod that asks for GPUs has no raw block devices ({which}); mount a volume by volumeMounts "
            "instead of "
            "volumeDevices",
        ),
        Validation(
            _mounts_own_daemon(containers),
            f"of volume {sharing.VOLUME} a container mounts {sharing.PIPES} alone, readOnly, with "
            f"{sharing.FOLDER_ENV} from the annotation {names.MPS_FOLDER} ({which}): the rest belongs to "
            "MPS daemons of others; leave it to the webhook",
        ),
        Validation(
            f"{containers}.all(container, container.?volumeMounts.orValue([]).all(each, "
            f"!each.mountPath.contains('{RUNTIME_MOUNTS}')))",
            f"a mount under {RUNTIME_MOUNTS} chooses GPUs past the gpu-scheduler ({which}); remove it",
        ),
    )


CLAIMED_PODS = Policy(
    "gpu-orchestrator-claimed-pods",
    "A pod that asks for GPUs goes the way of the gpu-scheduler, and no other.",
    (Resources(("pods",), ("CREATE",)),),
    (
        Validation(
            f"{cel.ASKS}.filter(key, key in object.metadata.annotations).size() == 1",
            f"{cel.ASKS}.filter(key, key in object.metadata.annotations).join(' and ') + ' ask for GPUs in "
            "several "
            "ways; keep one of them'",
            is_computed=True,
            reason="Invalid",
        ),
        Validation(
            f"{_GPUS}.matches('{GPUS_PATTERN}') || {NO_GPUS}",
            f"{names.GPUS} must be a whole number from 1 to {claims.MAX_GPUS}, or 0 for a member of a gang",
            reason="Invalid",
        ),
        Validation(
            f"{_NAMED}.matches('^[a-z0-9]([-.a-z0-9]{{0,251}}[a-z0-9])?$')",
            f"{names.CLAIM} and {names.CLAIM_TEMPLATE} must be the name of a GpuClaim in the pod's namespace",
            reason="Invalid",
        ),
        Validation(
            f"object.spec.?schedulerName.orValue('').matches('^([a-z0-9.-]+-)?{names.SCHEDULER}$')",
            "'schedulerName is ' + object.spec.?schedulerName.orValue('empty') + ', and only "
            f"{names.SCHEDULER} gives "
            f"GPUs to a pod that asks by annotation; set it to {names.SCHEDULER}. By default {_FILL}'",
            is_computed=True,
            reason="Invalid",
        ),
        Validation(
            "object.spec.?nodeName.orValue('') == ''",
            "'nodeName is ' + object.spec.nodeName + ', and would pass the gpu-scheduler by; use "
            "nodeSelector or "
            "nodeAffinity'",
            is_computed=True,
            reason="Invalid",
        ),
        Validation(
            "variables.containers.all(container, [container.?resources.?requests.orValue({}), "
            "container.?resources.?limits.orValue({})].all(amounts, amounts.all(name, "
            f"!({_is_gpu('name')}))))",
            "a pod asks for GPUs by annotation or by the resource of a device plugin (nvidia.com/gpu and "
            "the like), not "
            "by both: the plugin would choose GPUs of its own; remove one",
            reason="Invalid",
        ),
    ),
    conditions=CLAIMED,
    variables={"containers": cel.CONTAINERS},
)

CONFINED_PODS = Policy(
    "gpu-orchestrator-confined-pods",
    "A pod that asks for GPUs sees those that it was given, and no others.",
    (Resources(("pods",), ("CREATE",)),),
    (
        Validation(
            "variables.isSmall",
            f"a pod that asks for GPUs has at most {MOST_CONTAINERS} containers with {MOST_VARIABLES} "
            "variables in all, "
            f"and {MOST_VOLUMES} volumes; use envFrom, or several pods",
            reason="Invalid",
        ),
        *(
            Validation(f"!variables.isSmall || ({each.expression})", each.message, reason=each.reason)
            for each in _container_checks("variables.containers", "init containers too")
        ),
        Validation(
            "!object.spec.?hostPID.orValue(false)",
            "with hostPID a container reaches the devices of other pods' processes, so a pod that asks for "
            "GPUs has "
            "none; remove hostPID",
        ),
        Validation(
            f"!variables.isSmall || variables.hostPaths.all(path, !{cel.text_list(NODE_FILES)}.exists(each, "
            "path.startsWith(each) || each.startsWith(path)))",
            "a hostPath of /, /dev, /proc, /sys, /run or of files of kubelet or runtime shows GPUs of "
            "others; "
            "remove the volume. For shared memory at /dev/shm use emptyDir with medium: Memory",
        ),
        Validation(
            f"object.metadata.annotations.all(key, !({adds_devices('key')}))",
            _added("object.metadata.annotations"),
            is_computed=True,
        ),
    ),
    conditions=CLAIMED,
    variables={
        "containers": cel.CONTAINERS,
        "isSmall": f"variables.containers.size() <= {MOST_CONTAINERS} && "
        f"object.spec.?volumes.orValue([]).size() <= {MOST_VOLUMES} && "
        f"variables.containers.map(container, container.?env.orValue([]).size()).sum() <= {MOST_VARIABLES}",
        "hostPaths": "object.spec.?volumes.orValue([]).filter(volume, has(volume.hostPath) && "
        f"!(volume.name == '{sharing.VOLUME}' && volume.hostPath.path == '{sharing.ROOT}')).map(volume, "
        "('/' + volume.hostPath.path.split('/').filter(part, !(part in ['', '.'])).join('/') + '/')"
        ".replace('//', '/'))",
    },
)

LATE_CONTAINERS = Policy(
    "gpu-orchestrator-late-containers",
    "A container that `kubectl debug` adds to a pod with GPUs sees the same GPUs as the others.",
    (Resources(("pods/ephemeralcontainers",), ("UPDATE",)),),
    _container_checks("variables.added", "ephemeral containers"),
    conditions=CLAIMED,
    variables={
        "known": "oldObject.spec.?ephemeralContainers.orValue([]).map(container, container.name)",
        "added": "object.spec.?ephemeralContainers.orValue([]).filter(container, "
        "!(container.name in variables.known))",
    },
)

LATE_ANNOTATIONS = Policy(
    "gpu-orchestrator-late-annotations",
    "A pod keeps its annotations when the node starts its sandbox again, which a container can bring about.\n"
    "So those that add devices cannot come later, either.",
    (Resources(("pods",), ("UPDATE",)),),
    (
        Validation(
            "variables.added.size() == 0",
            "variables.added.join(', ') + ' adds devices past the gpu-scheduler; leave it out'",
            is_computed=True,
        ),
    ),
    conditions=CLAIMED,
    variables={
        "old": cel.annotations("oldObject"),
        "added": f"object.metadata.annotations.filter(key, ({adds_devices('key')}) && "
        "object.metadata.annotations[?key] != variables.old[?key])",
    },
)

POLICIES = (CLAIMED_PODS, CONFINED_PODS, LATE_CONTAINERS, LATE_ANNOTATIONS)
