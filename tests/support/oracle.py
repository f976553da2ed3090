"""The scheduling rules again, slow and simple: property tests compare the core with this.

It uses nodes and placements as plain values, and shares no code with filters, offers or topology.
"""

from collections.abc import Iterable
from itertools import combinations

from gpu_orchestrator.core.answer import Placement
from gpu_orchestrator.core.device import Device
from gpu_orchestrator.core.node import Node, Taint
from gpu_orchestrator.core.request import Expression, HostPort, Shape, Term, Toleration

Held = list[Placement]


def possible_sets(shape: Shape, node: Node, held: Held) -> list[tuple[int, ...]]:
    """Return every set of devices that a request may get."""
    free = [device.id for device in node.devices if device_has_room(shape, device, held)]
    maker = {device.id: device.vendor for device in node.devices}
    sets = [each for each in combinations(free, shape.gpus) if len({maker[i] for i in each}) <= 1]
    if shape.mode == "Required" and shape.gpus > 1:
        sets = [each for each in sets if weakest(node, each) >= shape.min_bandwidth_gbps]
    return sets


def fits(shape: Shape, node: Node, held: Held) -> bool:
    return (
        node.ready
        and node.schedulable
        and all(is_tolerated(taint, shape.tolerations) for taint in node.taints)
        and not (shape.gpus and node.barred)
        and is_wanted(shape, node)
        and all(free(node, held, name) >= amount for name, amount in shape.resources)
        and not any(clash(port, other) for port in shape.host_ports for p in held for other in p.host_ports)
        and can_attach(shape, node, held)
        and (not shape.gpus or bool(possible_sets(shape, node, held)))
    )


def can_attach(shape: Shape, node: Node, held: Held) -> bool:
    """Return whether the node can attach the volumes that it does not have yet."""
    attached = [volume for p in held for volume in p.volumes]
    new = [volume for volume in shape.volumes if volume not in attached]
    for driver, most in node.volume_limits:
        all_of_driver = {volume for volume in (*attached, *new) if volume[0] == driver}
        if any(volume[0] == driver for volume in new) and len(all_of_driver) > most:
            return False
    return True


def could_ever_fit(shape: Shape, node: Node) -> bool:
    """Return whether a node would fit if it were empty, ready and healthy."""
    well = [device for device in node.devices if is_of_kind(shape, device)]
    vendors = {device.vendor for device in well} or {""}
    alike = [[device.id for device in well if device.vendor == vendor] for vendor in vendors]
    sets = [each for ids in alike for each in combinations(ids, shape.gpus)]
    strict = shape.mode == "Required" and shape.gpus > 1
    linked = any(not strict or weakest(node, each) >= shape.min_bandwidth_gbps for each in sets)
    room = all(dict(node.resources).get(name, 0) >= amount for name, amount in shape.resources)
    return is_wanted(shape, node) and room and linked


def is_wanted(shape: Shape, node: Node) -> bool:
    labels = dict(node.labels)
    return (
        all(labels.get(key) == value for key, value in shape.labels)
        and (shape.within is None or labels.get(shape.within[0]) == shape.within[1])
        and (not shape.affinity or any(term_holds(term, node) for term in shape.affinity))
        and all(any(term_holds(term, node) for term in terms) for terms in shape.reach)
        and node.rdma_ports >= max(shape.fabric.min_ports, int(shape.fabric.rdma))
        and (node.cufile or not shape.fabric.cufile)
    )


def preference(shape: Shape, node: Node) -> tuple[int, int]:
    """Return a value that is larger for a node that is preferred more."""
    soft = [taint for taint in node.taints if taint.effect == "PreferNoSchedule"]
    hard = [Taint(taint.key, taint.value, "any") for taint in soft]
    mild = [t for t in shape.tolerations if t.effect in ("", "PreferNoSchedule")]
    meant = [Toleration(each.key, each.operator, each.value) for each in mild]
    repelled = sum(not is_tolerated(taint, meant) for taint in hard)
    return -repelled, sum(weight for weight, term in shape.preferred if term_holds(term, node))


def device_has_room(shape: Shape, device: Device, held: Held) -> bool:
    mine = [p for p in held if device.id in p.devices]
    if not device.healthy or not is_of_kind(shape, device):
        return False
    if shape.exclusive:
        return not mine
    if any(p.exclusive for p in mine):
        return False
    milli, memory = sum(p.milli for p in mine), sum(p.memory_mib for p in mine)
    return milli + shape.milli <= 1000 and (
        not shape.memory_mib or memory + shape.memory_mib <= device.memory_mib
    )


def is_of_kind(shape: Shape, device: Device) -> bool:
    return (
        device.profile == shape.profile
        and (not shape.vendor or device.vendor == shape.vendor)
        and (not shape.models or device.model in shape.models)
        and device.memory_mib >= shape.memory_mib
    )


def weakest(node: Node, ids: Iterable[int]) -> float:
    at = {device_id: i for i, device_id in enumerate(node.topology.ids)}
    return min((node.topology.bandwidth[at[a]][at[b]] for a, b in combinations(ids, 2)), default=float("inf"))


def free(node: Node, held: Held, name: str) -> int:
    return dict(node.resources).get(name, 0) - sum(dict(p.resources).get(name, 0) for p in held)


def is_tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    for each in tolerations:
        same_key = each.key == taint.key or (each.key == "" and each.operator == "Exists")
        same_value = each.operator == "Exists" or each.value == taint.value
        if same_key and same_value and each.effect in ("", taint.effect):
            return True
    return taint.effect == "PreferNoSchedule"


def term_holds(term: Term, node: Node) -> bool:
    labels = dict(node.labels)
    facts = [(each, labels.get(each.key)) for each in term.labels]
    facts += [(each, node.name) for each in term.fields]
    return bool(facts) and all(holds(each, value) for each, value in facts)


def holds(expression: Expression, value: str | None) -> bool:
    match expression.operator:
        case "In":
            return value in expression.values
        case "NotIn":
            return value not in expression.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and value.isdigit() and int(value) > int(expression.values[0])
        case "Lt":
            return value is not None and value.isdigit() and int(value) < int(expression.values[0])


def clash(one: HostPort, other: HostPort) -> bool:
    same = (one.port, one.protocol) == (other.port, other.protocol)
    return same and (one.ip == other.ip or "0.0.0.0" in (one.ip, other.ip))
