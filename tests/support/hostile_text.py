"""Text, numbers and JSON as a hostile tenant or a careless administrator writes them, and where they stand.

Used by `hostile_writes`, which puts them into objects, and by the fuzz tests of single functions.
"""

from random import Random
from typing import Any

NUMBERS = (
    *("0", "1", "2", "8", "64", "65", "1023", "1024", "00", "1.5", "-1", "+1", " 1", "1 ", "1_0", "0x10"),
    *("1e3", "1e999", "1E400", "-0", "NaN", "inf", "-inf", "Infinity", "9" * 19, "9" * 400, "9" * 5000),
    *("\u0663", "\uff18", "\u00b2", "\u2167", "1\u0663", "\u06f1\u06f2", "9223372036854775808", "1e-999"),
)
WORDS = (
    *("", " ", ",", ":", "/", "-", "a", "true", "null", "none", "shared", "unreadable", "gpu-scheduler"),
    *(
        "x" * 63,
        "x" * 253,
        "x" * 5000,
        "\u0000",
        "\n",
        "\u202e",
        "\U0001f600" * 50,
        "../../x",
        "a=b",
        "%s{}$",
    ),
)
DOCUMENTS = (
    *("{}", "[]", "{", "[", '""', "null", "1", "[null]", "[[]]", "[{}]", '{"count": null}', '{"count": "8"}'),
    *('[{"uid": null}]', '[{"uid": 1}]', '[{"uid": "a"}, {"uid": "a"}]', '[{"uid": "a", "share": -1}]'),
    *('[{"uid": "a", "share": 1e9}]', '[{"uid": "a", "memoryMiB": 9999999999999}]', '{"islands": [[0, 0]]}'),
    *('{"count": 9999999999}', '{"count": -1}', '{"count": 8, "islands": [[0, 9999]]}', '{"model": 7}'),
    *(
        "[" * 3000,
        "[" * 3000 + "]" * 3000,
        '{"a":' * 3000 + "1" + "}" * 3000,
        '{"count": ' + "9" * 5000 + "}",
    ),
    *(
        '{"count": NaN}',
        '{"count": 1e400}',
        '{"count": 8, "memoryMiB": 1e308}',
        '[{"uid": "' + "u" * 4000 + '"}]',
    ),
)
LABELS = (
    "",
    "0",
    "1",
    "8",
    "9" * 63,
    "NaN",
    "inf",
    "1e99",
    "true",
    "none",
    "mixed",
    "mps",
    "x" * 63,
    "1_0",
    "a.b-c",
)
QUANTITIES = (
    *("0", "1", "8", "1024", "1025", "1k", "1Ki", "9223372036854775807", "1Ei", "1e18", "1e30", "1e60"),
    *("100000000000000000000", "8.0", "8000m", "1n", "0.5", "-1", "12E"),
)

POD_ANNOTATIONS = (
    *("gpus", "claim", "claim-template", "strategy", "gang", "allocated", "visible-devices", "local-devices"),
)
POD_LABELS = (
    *("app", "gpu.warp.dev/workload", "gpu.warp.dev/controller", "gpu.scheduling/pod-uid"),
    *("gpu.scheduling/managed", "job-name", "batch.kubernetes.io/job-name"),
)
NODE_LABELS = (
    *("nvidia.com/gpu.count", "nvidia.com/gpu.replicas", "nvidia.com/gpu.sharing-strategy"),
    *("nvidia.com/mig.strategy", "nvidia.com/gpu.product", "nvidia.com/gpu.memory"),
    *("amd.com/compute-memory-partition", "amd.com/gpu.product-name", "zone"),
    *("gpu.intel.com/device-id.0380-56c1.count", "gpu-orchestrator/hourly-cost"),
    "gpu-orchestrator/cheap-node",
)
RESOURCES = (
    *("nvidia.com/gpu", "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared", "amd.com/gpu"),
    *("cpu", "memory", "gpu.intel.com/xe", "amd.com/cpx_nps4", "example.com/x"),
)
# What the schema lets pass, and what it does not; the second kind is rare, so that objects come through.
GBPS = ((0, 1, 600, 900, 2**31 - 1), (2**31, -1, "1"))
COUNTS = ((1, 1, 1, 2, 3, 64), (65, 0, -1, "1", None, 10**30))
PORTS = ((0, 4, 65_536), (-1, 65_537))
CLAIM_FIELDS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "policy": (("contiguous", "spread", "packed"), ("", "x", None)),
    "vendor": (("nvidia", "amd", "intel"), ("acme", "")),
    "model": (("A100", "x" * 253, "\u202e"), ("", 7)),
}
SHARED_FIELDS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "share": ((1, 500, 1000), (1001, 0, -1)),
    "memoryMiB": ((1, 1024, 2**24, 2**31 - 1), (2**31, -1)),
}
DEVICE_FIELDS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "uuid": (("", "GPU-1", "GPU-1", "x" * 253, "\u0000"), ("x" * 254,)),
    "vendor": (("nvidia", "amd", "intel"), (None, "acme")),
    "model": (("A100", "", "x" * 253), (7,)),
    "memoryMiB": ((0, 1, 81_920, 2**24, 2**24 + 1, 2**31 - 1), (-1,)),
    "bandwidthGBps": GBPS,
    "island": ((0, 1, 1023), (None, -1)),
    "numaNode": ((-1, 0, 1023), (None, -2)),
    "inUseBy": (([], ["u"], ["x" * 128]), (["a", "a"], [""], None)),
    "mig": (
        ({"profile": "1g.10gb", "parent": "GPU-1"}, {"profile": "x", "parent": "none"}),
        ({"profile": "x"},),
    ),
}
LONG_NOTES = ("x" * 250_000, "[" * 100_000, "\U0001f600" * 60_000)
"""Annotations near the limit of all annotations of an object."""
ARGUMENTS = "x" * 1_572_000
"""Of a container, so that its object is near the limit of what etcd stores."""


def nested(depth: int) -> Any:
    """Return an object nested so deep. To encode or decode it, raise the recursion limit."""
    found: Any = {}
    for _ in range(depth):
        found = {"a": found}
    return found


POD_FIELDS: dict[str, tuple[Any, ...]] = {
    "containers": (
        [],
        None,
        "x",
        [{}],
        [{"name": "main"}],
        [{"name": "main", "image": "x", "env": "x"}],
        [1],
    ),
    "tolerations": (None, [], "x", [{"operator": "Exists"}], [{"key": 1}]),
    "priorityClassName": ("", "none", 1),
    "volumes": (None, [{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}], 7),
    "overhead": ({"cpu": "1e999"}, {"cpu": "x"}, None),
    "affinity": (None, {"nodeAffinity": None}, {"nodeAffinity": {"x": 1}}, "x", []),
    "resources": (None, {"requests": {"cpu": "9" * 5000}}, {"limits": "x"}),
    "restartPolicy": ("Always", "", None, 3),
    "dnsConfig": (nested(150), nested(250), nested(800), nested(1500)),
}


def text(rng: Random) -> str:
    """Return a number, a word, a document, or several of them joined."""
    pool = rng.choice((NUMBERS, WORDS, DOCUMENTS))
    if rng.random() < 0.8:
        return rng.choice(pool)
    return rng.choice((",", ":", "-", "")).join(rng.choice(pool) for _ in range(rng.randrange(2, 9)))[:20_000]
