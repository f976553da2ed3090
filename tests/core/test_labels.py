"""Conditions on labels: what requests ask for costs a bounded number of looks and is not kept."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from gpu_orchestrator.core import inventory
from gpu_orchestrator.core.answer import Placement, Refusal
from gpu_orchestrator.core.cluster import Cluster
from gpu_orchestrator.core.decide import decide
from gpu_orchestrator.core.filters import compile_filters
from gpu_orchestrator.core.inventory import FEW, MOST_LABELS
from gpu_orchestrator.core.request import Expression, HostPort, Term
from gpu_orchestrator.core.standing import first_obstacle
from gpu_orchestrator.policies.registry import Registry
from tests.support.builders import cluster, node, request

POLICY = Registry().policy()
SOME = FEW + 4


def ask(to: Cluster, **asked: Any) -> Placement | Refusal:
    return decide(request("p", 1, **asked), to, POLICY, random.Random(1))


def one_term(key: str, operator: Any, *values: str) -> tuple[Term, ...]:
    return (Term((Expression(key, operator, values),)),)


def many_nodes(**labels: str) -> Cluster:
    return cluster(*(node(f"n{at}", 1, labels=labels) for at in range(SOME)))


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"labels": {"made-up": "x"}}, id="selector"),
        pytest.param({"affinity": one_term("made-up", "In", "x")}, id="affinity"),
        pytest.param({"affinity": one_term("made-up", "Gt", "1")}, id="number"),
        pytest.param({"preferred": ((1, one_term("made-up", "Gt", "1")[0]),)}, id="preferred"),
    ],
)
def test_labels_that_no_node_has_make_no_column(asked: dict[str, Any]) -> None:
    many = many_nodes(zone="a")
    before = many.rows_judged
    ask(many, **asked)
    assert many.rows_judged - before == many.inventory.size
    assert not many.inventory.labels
    assert not many.inventory.numbers


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"labels": {"zone": "nowhere"}}, id="selector"),
        pytest.param({"affinity": one_term("zone", "In", "nowhere", "else")}, id="values"),
        pytest.param({"affinity": one_term("zone", "NotIn", "nowhere", "else")}, id="values not wanted"),
        pytest.param({"vendor": "unheard"}, id="vendor"),
        pytest.param({"models": ("unheard",)}, id="models"),
    ],
)
def test_texts_of_requests_are_not_kept(asked: dict[str, Any]) -> None:
    many = many_nodes(zone="a")
    ask(many, **asked)
    assert not {"nowhere", "else", "unheard"} & set(map(str, many.inventory.names.values))


def test_vendor_and_model_that_were_unheard_of_are_found_when_a_node_has_them() -> None:
    many = many_nodes()
    for asked in ({"vendor": "amd"}, {"models": ("mi300", "mi400")}, {"vendor": "amd", "models": ("mi300",)}):
        assert isinstance(ask(many, **asked), Refusal)
    many.set_node(node("new", 1, vendor="amd", model="mi300"))
    for asked in ({"vendor": "amd"}, {"models": ("mi300", "mi400")}, {"vendor": "amd", "models": ("mi300",)}):
        found = ask(many, **asked)
        assert isinstance(found, Placement)
        assert found.node == "new"


def test_column_that_has_to_be_made_counts_as_judged() -> None:
    many = many_nodes(zone="1")
    ask(many)
    before = many.rows_judged
    ask(many, labels={"zone": "1"})
    assert many.rows_judged - before == many.inventory.size + SOME
    ask(many, affinity=one_term("zone", "Gt", "0"))
    assert many.rows_judged - before == 2 * many.inventory.size + 2 * SOME
    ask(many, labels={"zone": "2"})
    assert many.rows_judged - before == 3 * many.inventory.size + 2 * SOME


def test_few_nodes_are_looked_into_and_no_column_is_made() -> None:
    many = many_nodes(zone="1")
    asked = request("p", 1, labels={"zone": "1"}, affinity=one_term("zone", "Gt", "1")).shape
    obstacle = first_obstacle(compile_filters(asked, many.inventory), many, many.row("n1"))
    assert obstacle is not None
    assert obstacle.reason == "do not match the node affinity"
    assert many.inventory.rows_read == 0
    assert not many.inventory.labels


def test_label_column_that_was_used_last_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "MOST_LABELS", 3)
    many = many_nodes(**dict.fromkeys("abcdef", "x"))
    for key in "abc":
        many.inventory.label(key)
    for key in "def":
        many.inventory.label("a")
        many.inventory.label(key)
    assert list(many.inventory.labels) == ["e", "a", "f"]


def test_label_of_the_last_node_that_had_it_is_forgotten() -> None:
    many = many_nodes(zone="a")
    for at in range(SOME - 2):
        many.set_node(node(f"n{at}", 1, labels={"rack": "r"}))
    many.remove_node(f"n{SOME - 2}")
    assert many.inventory.nodes_with == {"rack": SOME - 2, "zone": 1}
    copied = many.copy()
    copied.set_node(node(f"n{SOME - 1}", 1))
    assert isinstance(ask(copied, labels={"zone": "a"}), Refusal)
    assert isinstance(ask(many, labels={"zone": "a"}), Placement)
    assert copied.inventory.nodes_with == {"rack": SOME - 2}


@given(
    nodes=some.lists(
        some.dictionaries(some.sampled_from("abc"), some.sampled_from(["", "1", "-2", "x"])), min_size=SOME
    ),
    key=some.sampled_from("abcd"),
)
def test_few_rows_have_the_values_of_the_column(nodes: list[dict[str, str]], key: str) -> None:
    many = cluster(*(node(f"n{at}", labels=labels) for at, labels in enumerate(nodes)))
    table, rows = many.inventory, np.arange(len(nodes))
    few = [table.label_at(key, rows[at : at + 1]).item() for at in rows]
    numbers = [table.number_at(key, rows[at : at + 1]).item() for at in rows]
    assert not table.labels
    assert few == table.label_at(key, rows).tolist()
    np.testing.assert_equal(numbers, table.number_at(key, rows))


def test_first_taken_host_port_is_named_and_a_node_is_looked_through_once() -> None:
    ports = tuple(HostPort(each) for each in range(1, 65))
    taken = (HostPort(9, ip="10.0.0.1"), HostPort(5, "UDP"), HostPort(7), HostPort(7))
    one = cluster(node("a", 1), held=[Placement("q", "a", host_ports=taken)])
    refused = ask(one, host_ports=ports)
    assert isinstance(refused, Refusal)
    assert refused.reasons == (("have host port 7 taken", 1),)
    assert isinstance(ask(one, host_ports=(HostPort(9, ip="10.0.0.2"), HostPort(5))), Placement)


def test_long_selector_is_shortened_in_the_reason() -> None:
    refused = ask(many_nodes(), labels={f"key-{at}": "x" * 63 for at in range(64)})
    assert isinstance(refused, Refusal)
    assert len(refused.message) < 2500
    assert "key-0=" in refused.message


def test_columns_are_kept_for_no_more_labels_than_allowed() -> None:
    many = many_nodes(**{f"k{at}": "x" for at in range(MOST_LABELS + 5)})
    for at in range(MOST_LABELS + 5):
        many.inventory.label(f"k{at}")
    assert len(many.inventory.labels) == MOST_LABELS
