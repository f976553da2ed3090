"""Any text becomes a label value, any workload name a Job name, and different ones stay different."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from gpu_orchestrator.apps.operator.jobs import job as jobs
from gpu_orchestrator.apps.operator.jobs import labels
from tests.support.operator_builders import UID, workload

LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        pytest.param("llama2", "llama2", id="as it is"),
        pytest.param("meta-llama/Llama-2-7b", "meta-llama-Llama-2-7b", id="a slash"),
        pytest.param("-x-", "x", id="edges"),
    ],
)
def test_readable_text_stays_readable(text: str, label: str) -> None:
    assert labels.safe(text) == label


@given(some.text(min_size=1, max_size=255))
def test_any_text_becomes_a_label_value(text: str) -> None:
    assert LABEL.fullmatch(labels.safe(text))


def test_cut_or_unreadable_texts_stay_different() -> None:
    assert labels.safe("模型") != labels.safe("模具")
    assert labels.safe("x" * 100) != labels.safe("x" * 101)


@example("0" * 48 + ".00", 0)
@given(some.from_regex(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", fullmatch=True), some.integers(0, 10))
def test_job_name_has_at_most_63_characters(name: str, retry: int) -> None:
    made = jobs.name_of(workload(name), retry)
    assert NAME.fullmatch(made)
    assert f"-job-{UID[:8]}" in made
    assert made.endswith(f"-r{retry}") == bool(retry)
