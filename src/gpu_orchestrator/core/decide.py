"""Decide where a request goes, or why it fits nowhere.

The engine calls it for every request; others call it on copies to see what would happen. The same input gives
the same answer.
"""

from math import isinf

import numpy as np

from gpu_orchestrator.core import explain, preferences
from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.columns import Floats, Ints, where
from gpu_orchestrator.core.filters import compile_filters
from gpu_orchestrator.core.filters.devices import Kind
from gpu_orchestrator.core.offers import Known, Offers
from gpu_orchestrator.core.policy import Policy, Rng
from gpu_orchestrator.core.request import Request, Shape
from gpu_orchestrator.core.standing import FITS, current, first_obstacle, scores_of


def decide(request: Request, cluster: Cluster, policy: Policy, rng: Rng) -> Placement | Refusal:
    """Return the best offer of any node, or the reasons why there is none. Changes nothing; `cluster.place`
    does."""
    standing = current(request.shape, cluster, policy)
    row = _best(_preferred(standing.scores, request.shape, cluster), policy, rng)
    cluster.standings.set_fitting((request.shape, policy), fits=row is not None)
    if row is None:
        return explain.refusal(standing, cluster)
    return _placement(request, standing.offers(cluster, np.array([row])))


def decide_among(
    rows: list[int], request: Request, cluster: Cluster, policy: Policy, rng: Rng
) -> Placement | Refusal:
    """Return what `decide` returns, if these rows fit and no others do: they alone are looked at. For one of
    thousands of shapes, whose standing is not worth keeping."""
    fitting: Ints = np.array(sorted(rows), np.int64)
    kind, known = Kind(request.shape, cluster.inventory), Known()
    scores = np.full(cluster.inventory.size, -np.inf)
    scores[fitting] = scores_of(Offers(cluster, kind, policy.allocate, fitting, known), policy)
    row = _best(_preferred(scores, request.shape, cluster), policy, rng)
    if row is None:
        return decide(request, cluster, policy, rng)
    return _placement(request, Offers(cluster, kind, policy.allocate, np.array([row]), known))


def why_not(shape: Shape, cluster: Cluster, policy: Policy) -> Refusal | None:
    """Return why nothing fits now; None if something does. Draws no random number, so it changes no later
    answer."""
    standing = current(shape, cluster, policy)
    return None if (standing.codes == FITS).any() else explain.refusal(standing, cluster)


def fits(shape: Shape, cluster: Cluster, name: str) -> bool:
    """Return True if this node could take the shape now."""
    filters = compile_filters(shape, cluster.inventory)
    return first_obstacle(filters, cluster, cluster.row(name)) is None


def _preferred(scores: Floats, shape: Shape, cluster: Cluster) -> Floats:
    if shape.preferred or cluster.inventory.has_soft:
        return preferences.most_preferred(scores, shape, cluster)
    return scores


def _best(scores: Floats, policy: Policy, rng: Rng) -> int | None:
    if not len(scores):
        return None
    row = int(scores.argmax())
    best = scores[row]
    if isinf(best):
        return None
    if policy.strategy.ties == "random":
        equals = where(scores == best)
        row = int(equals[int(rng.random() * len(equals))])
    return row


def _placement(request: Request, offer: Offers) -> Placement:
    shape, chosen = request.shape, offer.chosen()
    return Placement(
        request.key,
        offer.names[0],
        devices=chosen.ids,
        exclusive=shape.exclusive,
        milli=shape.milli,
        memory_mib=shape.memory_mib,
        resources=shape.resources,
        host_ports=shape.host_ports,
        bandwidth_gbps=0 if isinf(chosen.gbps) else int(chosen.gbps),
        volumes=shape.volumes,
        neighbour=request.neighbour,
    )


def rank(shape: Shape, cluster: Cluster, policy: Policy) -> list[str]:
    """Return the nodes that could take the shape now, the best one first. Draws no random number."""
    scores = current(shape, cluster, policy).scores
    order = np.argsort(-scores, kind="stable")
    nodes = (cluster.inventory.nodes[row] for row in order if not isinf(scores[row]))
    return [node.name for node in nodes if node]
