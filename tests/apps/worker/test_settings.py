"""A bad setting of a worker is a one-line error that says what to write."""

from typing import Any

import pytest

from gpu_orchestrator.adapters.settings import BadSettings
from gpu_orchestrator.apps.worker.frames import Options
from gpu_orchestrator.apps.worker.settings import Settings

GOOD: dict[str, Any] = {"servers": ("http://manager:8000",), "token": "secret", "name": "w-1"}


def test_session_url_is_built_from_server_and_name() -> None:
    assert Settings(**GOOD).session_url("http://manager:8000/") == "http://manager:8000/workers/w-1/session"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        pytest.param({"servers": ("http://a", "manager:8000")}, "write http://host:port", id="no scheme"),
        pytest.param({"servers": ()}, "write http://host:port", id="no server"),
        pytest.param({"on_disconnect": "hope"}, "give stop .* or keep", id="unknown way to disconnect"),
        pytest.param({"token": ""}, "give --token", id="no token"),
        pytest.param({"name": "a/../b"}, "is not a valid worker name", id="name that changes a path"),
        pytest.param({"max_concurrent": 0}, "1 or more tasks", id="no room"),
        pytest.param(
            {"options": Options(functions={"f": "os.system"})}, "NAME=module:function", id="function"
        ),
        pytest.param({"options": Options(upstreams={"u": "file:///etc"})}, "NAME=http://", id="upstream"),
    ],
)
def test_bad_setting_is_refused_with_what_to_write(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSettings, match=message):
        Settings(**GOOD | changed)
