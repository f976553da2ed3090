"""Every handler in a real runner process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gpu_orchestrator.adapters.gpus import simulated
from gpu_orchestrator.adapters.gpus.simulated import Simulated
from gpu_orchestrator.apps.worker import frames
from gpu_orchestrator.apps.worker.frames import Options
from gpu_orchestrator.apps.worker.handlers import find, http
from gpu_orchestrator.apps.worker.task import LARGEST_RESULT, BadParameters
from tests.support.runners import running

pytestmark = pytest.mark.real

FUNCTIONS = {
    name: f"tests.support.worker_functions:{name}"
    for name in ("add", "environment", "fail", "large", "not_json", "prints")
}


async def test_runner_runs_tasks_in_order() -> None:
    async with running() as client:
        for number in range(20):
            parameters = {"number": number, "text": "×"}
            assert await client.result("echo", parameters, task=f"t{number}") == parameters


async def test_sleep_reports_progress() -> None:
    async with running() as client:
        result = await client.result("sleep", {"seconds": 0.05, "progress": True})
        assert result["slept_s"] >= 0.05
        assert client.printed() == "0 of 0.05 s\n"


@pytest.mark.parametrize(
    ("task_type", "parameters", "message"),
    [
        pytest.param("sleep", {"seconds": "long"}, "seconds is 'long'; give a number", id="wrong type"),
        pytest.param("sleep", {"seconds": 1, "colour": "red"}, "unknown field colour", id="unknown field"),
        pytest.param("sleep", {}, "seconds is missing; give a number", id="missing"),
        pytest.param("sleep", [], "the whole is []; give an object", id="not an object"),
        pytest.param("vram", {"mib": 0}, "mib is 0; give at least 1", id="out of range"),
        pytest.param("nonsense", {}, "unknown task type 'nonsense'", id="no such type"),
        pytest.param("command", {"arguments": ["id"]}, "--allow-command", id="command is off"),
        pytest.param("python", {"function": "add"}, "--function", id="no function registered"),
        pytest.param("http", {"upstream": "x"}, "--upstream", id="no upstream named"),
    ],
)
async def test_task_that_cannot_run_fails_with_a_reason(
    task_type: str, parameters: object, message: str
) -> None:
    async with running() as client:
        error = await client.error(task_type, parameters)
        assert message in error.message
        assert not error.retryable
        assert await client.result("echo", 1, task="next") == 1


def test_disabled_task_types_are_not_offered() -> None:
    assert find.task_types(Options()) == ("echo", "sleep", "vram")
    allowed = Options(functions={"f": "m:f"}, upstreams={"u": "http://u"}, allow_command=True)
    assert find.task_types(allowed) == ("command", "echo", "http", "python", "sleep", "vram")


async def test_python_calls_only_registered_functions() -> None:
    async with running(Options(functions=FUNCTIONS)) as client:
        assert await client.result("python", {"function": "add", "arguments": {"a": 2, "b": 3}}) == 5
        error = await client.error("python", {"function": "os:system"}, task="other")
        assert "not registered on this worker; registered: add" in error.message


async def test_failing_function_reports_error_and_traceback() -> None:
    async with running(Options(functions=FUNCTIONS)) as client:
        error = await client.error("python", {"function": "fail", "arguments": {"message": "no luck"}})
        assert (error.error, error.message, error.retryable) == ("RuntimeError", "no luck", False)
        assert 'functions.py", line ' in client.printed()


async def test_result_that_is_not_json_is_an_error() -> None:
    async with running(Options(functions=FUNCTIONS)) as client:
        assert (await client.error("python", {"function": "not_json"})).error == "TypeError"


async def test_too_large_result_is_an_error() -> None:
    async with running(Options(functions=FUNCTIONS)) as client:
        parameters = {"function": "large", "arguments": {"size": 9 << 20}}
        error = await client.error("python", parameters)
        assert (error.error, error.retryable) == ("ResultTooLarge", False)
        assert "8388608 are allowed" in error.message


async def test_too_deeply_nested_result_is_an_error() -> None:
    async with running(Options()) as client:
        error = await client.error("echo", nested(300))
        assert (error.error, error.retryable) == ("ResultTooDeep", False)


def nested(depth: int) -> Any:
    made: Any = None
    for _ in range(depth):
        made = [made]
    return made


async def test_printed_lines_are_sent() -> None:
    async with running(Options(functions=FUNCTIONS)) as client:
        await client.result("python", {"function": "prints"})
        assert client.printed() == "from print\n"


async def test_runner_environment_has_no_secrets_of_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_ORCHESTRATOR_TOKEN", "secret")
    monkeypatch.setenv("REDIS_PASSWORD", "secret")
    monkeypatch.setenv("HARMLESS", "shown")
    async with running(Options(functions=FUNCTIONS)) as client:
        for name, expected in (
            ("GPU_ORCHESTRATOR_TOKEN", None),
            ("REDIS_PASSWORD", None),
            ("HARMLESS", "shown"),
        ):
            parameters = {"function": "environment", "arguments": {"name": name}}
            assert await client.result("python", parameters, task=name) == expected


async def test_command_runs_a_list_of_arguments_without_a_shell() -> None:
    async with running(Options(allow_command=True)) as client:
        result = await client.result("command", {"arguments": ["echo", "$HOME; ls"]})
        assert result == {"exit_code": 0, "output": ["$HOME; ls"]}
        error = await client.error("command", {"arguments": ["sh", "-c", "echo why; exit 3"]}, task="b")
        assert (error.error, error.message) == ("CommandFailed", "sh ended with exit code 3: why")
        assert (
            await client.error("command", {"arguments": ["/no/such"]}, task="c")
        ).error == "FileNotFoundError"


@asynccontextmanager
async def upstream(secret_port: int = 0) -> AsyncIterator[str]:
    """Serve routes, one of which redirects to another server on this machine."""

    async def complete(request: web.Request) -> web.Response:
        return web.json_response({"text": (await request.json())["prompt"].upper()})

    async def busy(_: web.Request) -> web.Response:
        return web.Response(status=503, text="loading")

    async def away(_: web.Request) -> web.Response:
        return web.Response(
            status=302, headers={"Location": f"http://127.0.0.1:{secret_port}/v1/completions"}
        )

    app = web.Application()
    app.add_routes([web.post("/v1/completions", complete), web.post("/busy", busy), web.post("/away", away)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_http_forwards_to_a_named_server() -> None:
    async with (
        upstream() as url,
        running(Options(upstreams={"llm": url, "gone": "http://127.0.0.1:1"})) as client,
    ):
        parameters = {"upstream": "llm", "path": "/v1/completions", "body": {"prompt": "hi"}}
        assert await client.result("http", parameters) == {"status": 200, "body": {"text": "HI"}}
        busy = await client.error("http", {"upstream": "llm", "path": "/busy"}, task="b")
        assert (busy.retryable, "answered 503" in busy.message) == (True, True)
        wrong = await client.error("http", {"upstream": "llm", "path": "/no"}, task="c")
        assert (wrong.retryable, "answered 404" in wrong.message) == (False, True)
        gone = await client.error("http", {"upstream": "gone"}, task="d")
        assert (gone.retryable, "did not answer" in gone.message) == (True, True)
        other = await client.error("http", {"upstream": "http://169.254.169.254"}, task="e")
        assert "is not known to this worker; known: gone, llm" in other.message
        sly = await client.error("http", {"upstream": "llm", "path": "@evil/"}, task="f")
        assert "is not a valid path" in sly.message


@pytest.mark.parametrize(
    "path",
    ["/../x", "/a/../../x", "/./x", "/%2e%2e/x", "/%252e%252E/x", "/..%2fx", "/a\\..\\x", "/..?q=1", "/.."],
)
def test_http_path_cannot_leave_that_of_the_upstream(path: str) -> None:
    with pytest.raises(BadParameters, match="which could leave the upstream's own path"):
        http._check_path(path)


@pytest.mark.parametrize("path", ["/", "/v1/models", "/a..b/...", "/x?next=/../y", "/%2Fx", "/.well-known/x"])
def test_http_path_may_have_dots_in_names(path: str) -> None:
    http._check_path(path)


async def test_http_sends_the_operators_headers_and_takes_no_answer_larger_than_a_result() -> None:
    async def serve(request: web.Request) -> web.Response:
        if request.path == "/large":
            return web.Response(body=b"a" * (LARGEST_RESULT + 1))
        return web.json_response({"key": request.headers.get("Authorization")})

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", serve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    options = Options(
        upstreams={"llm": url, "open": url},
        upstream_headers={"llm": {"Authorization": "Bearer of-the-operator"}},
    )
    try:
        async with running(options) as client:
            with_key = await client.result("http", {"upstream": "llm"})
            assert with_key["body"] == {"key": "Bearer of-the-operator"}
            assert (await client.result("http", {"upstream": "open"}, task="b"))["body"] == {"key": None}
            large = await client.error("http", {"upstream": "llm", "path": "/large"}, task="c")
            assert (large.error, "answered more than 8 MiB" in large.message) == ("UpstreamRefused", True)
    finally:
        await runner.cleanup()


async def test_http_cannot_leave_its_server_by_redirect_or_path() -> None:
    requested: list[str] = []

    async def watch(request: web.Request) -> web.Response:
        requested.append(request.path)
        return web.Response(text="secret")

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", watch)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    try:
        async with upstream(port) as url, running(Options(upstreams={"llm": url})) as client:
            sent = await client.result("http", {"upstream": "llm", "path": "/away"})
            assert sent["status"] == 302
            for number, path in enumerate(
                (f"//127.0.0.1:{port}/", f"/@127.0.0.1:{port}/", f"/\\127.0.0.1:{port}/")
            ):
                refused = await client.error("http", {"upstream": "llm", "path": path}, task=str(number))
                assert "answered 404" in refused.message
    finally:
        await runner.cleanup()
    assert requested == []


async def test_vram_allocates_holds_and_frees_memory(tmp_path: Path) -> None:
    gpus = Simulated(tmp_path, "2xL4:24GiB")
    uuids = [device.uuid for device in gpus.devices()]
    async with running(environment=gpus.environment(uuids)) as client:
        client.run("vram", {"hold_s": 60}, memory_mib=5000)
        await client.receive(frames.Printed)
        assert [reading.used_mib for reading in gpus.readings()] == [5000, 5000]
        assert gpus.readings()[0].held_by(client.runner.pids()) == 5000
        client.runner.send(frames.Cancel("t", 1))
        await client.receive(frames.Stopped)
        assert [reading.used_mib for reading in gpus.readings()] == [0, 0]
        assert await client.result("vram", {"mib": 7}, task="next") == {"mib": 7, "devices": 2}


async def test_out_of_memory_is_retryable_and_ends_the_runner(tmp_path: Path) -> None:
    gpus = Simulated(tmp_path, "1xL4:24GiB")
    (device,) = gpus.devices()
    simulated.allocate(tmp_path, device.uuid, 20_000)
    async with running(environment=gpus.environment([device.uuid])) as client:
        error = await client.error("vram", {"mib": 10_000})
        assert (error.error, error.retryable, error.spent) == ("OutOfMemory", True, True)
        assert "4576 of 24576 MiB are free" in error.message
        assert "exit code 0" in await client.wait_gone()
