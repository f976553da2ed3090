"""Which container of a pod template gets the GPUs."""

import pytest

from gpu_orchestrator.api import podtemplate


@pytest.mark.parametrize(
    ("containers", "index"),
    [
        pytest.param(["logs", "main"], 1, id="the one named main"),
        pytest.param(["trainer", "logs"], 0, id="else the first"),
        pytest.param([None, "main"], 1, id="a container without a name"),
    ],
)
def test_main_container_is_named_main_or_first(containers: list[str | None], index: int) -> None:
    assert podtemplate.main_index(containers) == index
