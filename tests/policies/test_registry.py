"""Policies by name: defaults, errors, and strategies from plugins."""

import random

import numpy as np
import pytest

from gpu_orchestrator.core.columns import Floats
from gpu_orchestrator.core.decide import decide
from gpu_orchestrator.core.errors import InvalidRequest
from gpu_orchestrator.core.offers import Offers
from gpu_orchestrator.core.policy import Choice, Policy, Strategy
from gpu_orchestrator.policies.registry import BadPlugin, Registry, UnknownPolicy
from tests.support.builders import cluster, links, node, placed, request


def test_empty_names_mean_the_defaults() -> None:
    registry = Registry()
    assert registry.policy() is registry.policy("leastLoaded", "contiguous")
    assert registry.policy_of(request("p")) is registry.policy()
    assert registry.policy_of(request("p", strategy="binPack", allocator="packed")).strategy.name == "binPack"


@pytest.mark.parametrize(
    ("strategy", "allocator", "message"),
    [
        pytest.param(
            "leastload",
            "",
            "unknown strategy 'leastload'; did you mean 'leastLoaded'? "
            "known: binPack, costOptimized, leastFragmenting, leastLoaded, random, topology",
            id="nearly right",
        ),
        pytest.param(
            "fastest",
            "",
            "unknown strategy 'fastest'; "
            "known: binPack, costOptimized, leastFragmenting, leastLoaded, random, topology",
            id="not at all",
        ),
        pytest.param(
            "",
            "preferids",
            "unknown allocator 'preferids'; did you mean 'preferIds'? "
            "known: contiguous, packed, preferIds, spread",
            id="an allocator",
        ),
    ],
)
def test_unknown_name_error_lists_known_names(strategy: str, allocator: str, message: str) -> None:
    with pytest.raises(UnknownPolicy) as error:
        Registry().policy(strategy, allocator)
    assert str(error.value) == message


def alphabetical_last(offers: Offers) -> Floats:
    return np.array([float(ord(name[0])) for name in offers.names])


def test_plugin_strategy_is_used_by_its_name() -> None:
    ours = Strategy("last", ((1.0, alphabetical_last),))
    registry = Registry().with_plugins([("last", lambda: ours)])
    where = cluster(node("a", 8), node("z", 1))
    assert placed(decide(request("p"), where, registry.policy("last"), random.Random(1)))[0] == "z"
    assert "last" not in Registry().strategies


@pytest.mark.parametrize(
    ("name", "plugin", "message"),
    [
        pytest.param("binPack", Strategy("binPack"), "'binPack' is there already", id="name taken"),
        pytest.param("mine", "not a strategy", "'mine' is a str; it must be a Strategy", id="something else"),
    ],
)
def test_bad_plugin_error_names_it(name: str, plugin: object, message: str) -> None:
    with pytest.raises(BadPlugin, match=message):
        Registry().with_plugins([(name, lambda: plugin)])


def test_plugin_that_cannot_be_imported_is_an_error_that_names_it() -> None:
    def load() -> object:
        raise ModuleNotFoundError("No module named 'cool_racks'")

    with pytest.raises(BadPlugin, match="'coolRacks' cannot be loaded: ModuleNotFoundError: No module named"):
        Registry().with_plugins([("coolRacks", load)])


def test_non_finite_opinion_is_an_error_that_names_the_strategy() -> None:
    broken = Strategy("broken", ((1.0, lambda offers: np.full(len(offers), np.nan)),))
    policy = Policy(broken, Registry().policy().allocate)
    with pytest.raises(InvalidRequest, match="strategy broken gave a score that is not a finite number"):
        decide(request("p"), cluster(node("a", 1)), policy, random.Random(1))


@pytest.mark.parametrize(
    ("offered", "message"),
    [
        pytest.param((0,), "2 different ones of", id="too few"),
        pytest.param((0, 0), "2 different ones of", id="one twice"),
        pytest.param((0, 9), "2 different ones of", id="one that is not free"),
        pytest.param((0, 2), "offered 0 GB/s where 600 are required", id="badly linked"),
    ],
)
def test_allocator_that_breaks_the_rules_is_an_error(offered: tuple[int, ...], message: str) -> None:
    def cheat(choice: Choice) -> tuple[int, ...]:
        return offered

    policy = Policy(Registry().policy().strategy, cheat)
    where = cluster(node("a", 4, links=links((0, 1))))
    with pytest.raises(InvalidRequest, match=message):
        decide(request("p", 2, mode="Required", min_bandwidth_gbps=600), where, policy, random.Random(1))
