"""Bad settings are named in one line, with what to do."""

from typing import Any

import pytest

from gpu_orchestrator.apps.worker.frames import Options
from gpu_orchestrator.apps.worker.settings import BadSettings, Settings

GOOD: dict[str, Any] = {"server": "http://manager:8000", "token": "secret", "name": "w-1"}


def test_the_session_has_one_address() -> None:
    assert Settings(**GOOD).session_url == "http://manager:8000/workers/w-1/session"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        pytest.param({"server": "manager:8000"}, "write http://host:port", id="no scheme"),
        pytest.param({"token": ""}, "give --token", id="no token"),
        pytest.param({"name": "a/../b"}, "is no name for a worker", id="name that changes a path"),
        pytest.param({"max_concurrent": 0}, "1 or more tasks", id="no room"),
        pytest.param(
            {"options": Options(functions={"f": "os.system"})}, "NAME=module:function", id="function"
        ),
        pytest.param({"options": Options(upstreams={"u": "file:///etc"})}, "NAME=http://", id="upstream"),
    ],
)
def test_bad_settings_say_what_to_write(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSettings, match=message):
        Settings(**GOOD | changed)
