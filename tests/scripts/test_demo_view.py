"""The live view of `make demo` stays readable on narrow terminals and while workloads wait."""

import io

import pytest
from rich.console import Console

from scripts import demo_view

REASON = "0/20 nodes fit: 15 have fewer than 8 free GPUs, 5 have GPUs claimed through the gpu-scheduler"


def workload(name: str, namespace: str = "demo", **status: str) -> demo_view.Json:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"gpuCount": 8, "schedulingStrategy": "costOptimized", "priority": "normal"},
        "status": status,
    }


WORKLOADS = [
    workload("my-model", phase="Running", assignedNode="gpu-node-13", message="running on gpu-node-13"),
    workload("claimed-model", phase="Running", assignedNode="claim-node-0", allocated="claim-node-0:0,1,2,3"),
    workload("nightly-embeddings", "default", phase="Pending", message=REASON),
]
EVENT = {
    "eventTime": "2026-01-01T12:34:56.000000Z",
    "regarding": {"name": "nightly-embeddings", "namespace": "default"},
    "reason": "FailedScheduling",
    "note": REASON,
}


def shown(width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(demo_view.view(WORKLOADS, [EVENT], home="demo", width=width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        pytest.param(160, set(), id="wide"),
        pytest.param(125, {"priority"}, id="one column less"),
        pytest.param(110, {"priority", "strategy"}, id="usual"),
        pytest.param(80, {"priority", "strategy", "GPUs", "node"}, id="narrow"),
        pytest.param(60, {"priority", "strategy", "GPUs", "node"}, id="very narrow"),
    ],
)
def test_columns_are_left_out_and_none_is_squeezed(width: int, left_out: set[str]) -> None:
    rows = [demo_view.workload_row(each, "demo") for each in WORKLOADS]
    names = demo_view.columns_for(demo_view.COLUMNS, rows, width)
    assert set(demo_view.COLUMNS) - set(names) == left_out
    lines = shown(width)
    assert all(len(line) <= width for line in lines)
    for row in rows:
        line = next(each for each in lines if f" {row['name']} " in each)
        assert all(row[name] in line for name in names if name != "message"), line


@pytest.mark.parametrize("width", [160, 110, 80, 60])
def test_reason_to_wait_is_shown_whole(width: int) -> None:
    """In the table of workloads and in that of events, over several lines if need be."""
    last = [line.rstrip("│ ").rpartition("│")[2].strip() for line in shown(width)]
    assert " ".join(each for each in last if each).count(REASON) == 2, last


@pytest.mark.parametrize(("width", "shown_in_message"), [(110, False), (80, True)])
def test_node_is_shown_in_its_column_or_in_the_message(width: int, shown_in_message: bool) -> None:
    text = "\n".join(shown(width))
    assert ("running on" in text) is shown_in_message
    assert "gpu-node-13" in text


def test_name_shows_the_namespace_unless_it_is_the_demos_own() -> None:
    names = [demo_view.workload_row(each, "demo")["name"] for each in WORKLOADS]
    assert names == ["my-model", "claimed-model", "default/nightly-embeddings"]


def test_brackets_in_a_message_are_text() -> None:
    console = Console(width=200, file=io.StringIO())
    odd = workload("odd", phase="Pending", message="didn't satisfy plugin(s) [NodeAffinity]")
    console.print(demo_view.view([odd], [], home="demo", width=200))
    assert isinstance(console.file, io.StringIO)
    assert "[NodeAffinity]" in console.file.getvalue()
