"""What `up` says: hints that reach this server and no other, and warnings before anything goes wrong."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from gpu_orchestrator.adapters.settings import Settings
from gpu_orchestrator.apps.manager.access import keys
from gpu_orchestrator.cli import greeting
from gpu_orchestrator.cli.greeting import Place, hints, warnings
from gpu_orchestrator.cli.own_keys import Secrets

URL, HOME = "http://127.0.0.1:8030", Settings().data_dir


@pytest.mark.parametrize(
    ("place", "wanted"),
    [
        pytest.param(Place(URL, "/x y"), "export DATA_DIR='/x y'", id="another folder"),
        pytest.param(
            Place(URL, HOME, needs_url=True), f"export GPU_ORCHESTRATOR_URL={URL}", id="another login"
        ),
        pytest.param(
            Place(URL, HOME),
            f'curl -H "Authorization: Bearer $(gpu-orchestrator key show)" {URL}/cluster/status',
            id="key of curl",
        ),
        pytest.param(Place(URL, HOME, ca="/c.pem"), "curl --cacert /c.pem -H", id="certificate of curl"),
        pytest.param(Place(URL, HOME, needs_path=True), "export PATH=", id="not on the PATH"),
    ],
)
def test_hints_reach_this_server(place: Place, wanted: str) -> None:
    assert wanted in "\n".join(hints(place, has_gpu=True))


def test_hints_need_no_export_for_the_usual_server() -> None:
    assert "export" not in "\n".join(hints(Place(URL, HOME), has_gpu=True))


def test_hint_asks_for_no_gpu_where_there_is_none() -> None:
    assert "--gpus 0" in "\n".join(hints(Place(URL, HOME), has_gpu=False))


@pytest.mark.parametrize(
    ("gpus", "in_clear", "said"),
    [(4, False, []), (0, False, ["no GPU found; try --simulate 4"]), (4, True, ["in clear text"])],
)
def test_warnings_name_what_will_go_wrong(gpus: int, in_clear: bool, said: list[str]) -> None:
    found = list(warnings(gpus=gpus, in_clear=in_clear))
    assert len(found) == len(said)
    assert all(words in line for words, line in zip(said, found, strict=True))


@pytest.mark.parametrize("width", [60, 80, 110])
def test_key_is_never_broken_and_the_rest_is_short(width: int, tmp_path: Path) -> None:
    host: Any = SimpleNamespace(
        server=SimpleNamespace(url=URL, in_clear=False),
        secrets=Secrets(keys.make(), "", fresh=True),
        settings=Settings(data_dir=str(tmp_path)),
    )
    output = io.StringIO()
    greeting.show(Console(file=output, width=width, highlight=False), cast(Any, host), gpus=4)
    lines = output.getvalue().splitlines()
    assert f"  {host.secrets.api_key}" in lines
    assert len(lines) <= 14, "it must leave room for the tasks on a terminal of 24 lines"
