"""Pods as JSON for tests of admission: plain ones, and such that nobody would write on purpose."""

from typing import Any

from hypothesis import strategies as st

from gpu_orchestrator.api import names

Json = dict[str, Any]

SCALARS = st.none() | st.booleans() | st.integers(-5, 5000) | st.text(max_size=6)
ANY_JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def pod(*containers: Json, annotations: dict[str, str] | None = None, **spec: Any) -> Json:
    """Return a pod with these containers; one without anything if there are none."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": "default", "annotations": annotations or {}},
        "spec": {"containers": list(containers) or [{"name": "main", "image": "train"}], **spec},
    }


def _maybe(made: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return the right thing most of the time, anything now and then."""
    return st.one_of(made, made, made, made, ANY_JSON)


VARIABLES = st.fixed_dictionaries(
    {"name": _maybe(st.sampled_from([*names.DEVICE_ENV, "PATH", "HOME"]))},
    optional={"value": _maybe(st.text(max_size=6)), "valueFrom": ANY_JSON},
)
AMOUNTS = st.dictionaries(st.sampled_from([names.MILLIGPU, "cpu", "nvidia.com/gpu"]), _maybe(st.just("1")))
CONTAINERS = st.fixed_dictionaries(
    {"name": _maybe(st.sampled_from(["main", "side", "debugger"]))},
    optional={
        "env": _maybe(st.lists(_maybe(VARIABLES), max_size=5)),
        "resources": _maybe(
            st.fixed_dictionaries({}, optional={"requests": _maybe(AMOUNTS), "limits": _maybe(AMOUNTS)})
        ),
        "image": SCALARS,
    },
)
CONTAINER_LISTS = _maybe(st.lists(_maybe(CONTAINERS), max_size=3))
TOLERATIONS = st.fixed_dictionaries(
    {"key": _maybe(st.sampled_from(names.GPU_RESOURCES))}, optional={"operator": _maybe(st.just("Exists"))}
)
SPECS = st.fixed_dictionaries(
    {"containers": CONTAINER_LISTS},
    optional={
        "initContainers": CONTAINER_LISTS,
        "ephemeralContainers": CONTAINER_LISTS,
        "schedulerName": _maybe(st.sampled_from(["", "default-scheduler", names.SCHEDULER, "volcano"])),
        "tolerations": _maybe(st.lists(_maybe(TOLERATIONS), max_size=4)),
        "nodeName": SCALARS,
    },
)
ANNOTATIONS = st.dictionaries(
    st.sampled_from([*names.ASKING_ANNOTATIONS, names.ALLOCATED, "team"]),
    _maybe(st.sampled_from(["2", "64", "65", "", "train", "Not A Name"])),
    max_size=2,
)
METADATA = st.fixed_dictionaries({"annotations": _maybe(ANNOTATIONS)}, optional={"name": SCALARS})
PODS = st.fixed_dictionaries(
    {"metadata": _maybe(METADATA), "spec": _maybe(SPECS)}, optional={"status": ANY_JSON}
)
"""Pods of which anything may be of the wrong type."""
