"""A real worker process in session with a scripted server: what it runs, what it sends, how it ends."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from gpu_orchestrator.adapters.gpus import simulated
from gpu_orchestrator.api import session
from tests.apps.worker.conftest import NewWorker
from tests.support.scale import Scale
from tests.support.scripted_server import SHORT_LEASE_S, Peer
from tests.support.workers import Worker, gone_within, grown_to

pytestmark = pytest.mark.real

DEAF = ("--function", "deaf=tests.support.worker_functions:deaf")
FAMILY = ("--function", "family=tests.support.worker_functions:family")
GATED = ("--function", "gate=tests.support.worker_functions:waits_for")
QUICK = {"function": "family", "arguments": {"seconds": 300}}
LATE_S = 30.0
"""Extra time in `make test`: on a busy machine the process that kills a runner may stall too."""


def given(hello: session.Hello, *indices: int) -> tuple[session.Given, ...]:
    return tuple(session.Given(index, hello.devices[index].uuid) for index in indices)


def until_there(gate: Path) -> dict[str, object]:
    """Return the parameters of a task that ends when this file is there."""
    return {"function": "gate", "arguments": {"path": str(gate)}}


def maps_of(worker: Worker) -> str:
    return Path(f"/proc/{worker.process.pid}/maps").read_text()


def message_types(peer: Peer, task: str) -> list[str]:
    return [type(m).__name__ for m in peer.received if getattr(m, "task", "") == task]


async def test_hello_describes_the_worker_and_its_devices(peer: Peer, new_worker: NewWorker) -> None:
    new_worker("--simulate", "1xL4:24GiB,1xH200:141GiB", "--max-concurrent", "3", "--label", "zone=a")
    hello = await peer.receive(session.Hello)
    assert [(device.model, device.memory_mib) for device in hello.devices] == [
        ("L4", 24576),
        ("H200", 144384),
    ]
    assert (hello.name, hello.max_concurrent, hello.labels) == ("w", 3, {"zone": "a"})
    assert hello.task_types == ("echo", "sleep", "vram")
    report = await peer.receive(session.Report)
    assert [reading.free_mib for reading in report.readings] == [24576, 144384]


@pytest.mark.parametrize(
    ("options", "slots"),
    [
        pytest.param(("--simulate", "4xL4:24GiB"), 4, id="as many as devices"),
        pytest.param((), 1, id="at least one"),
    ],
)
async def test_concurrency_is_the_number_of_devices(
    peer: Peer, new_worker: NewWorker, options: tuple[str, ...], slots: int
) -> None:
    new_worker(*options, "--pool", "a100")
    hello = await peer.receive(session.Hello)
    assert (hello.max_concurrent, hello.pool) == (max(slots, len(hello.devices)), "a100")


async def test_tasks_run_and_return_results(peer: Peer, new_worker: NewWorker) -> None:
    new_worker("--max-concurrent", "40")
    await peer.receive(session.Hello)
    for number in range(40):
        await peer.assign(f"t{number}", "echo", {"number": number})
    for number in range(40):
        done = await peer.receive(session.Done, f"t{number}")
        assert msgspec.json.decode(done.result) == {"number": number}


async def test_repeated_assignment_runs_once(peer: Peer, new_worker: NewWorker) -> None:
    new_worker()
    await peer.receive(session.Hello)
    await peer.assign("t", "sleep", {"seconds": 0.2})
    await peer.assign("t", "sleep", {"seconds": 0.2})
    await peer.receive(session.Done, "t")
    await peer.assign("last")
    await peer.receive(session.Done, "last")
    assert message_types(peer, "t") == ["Started", "Done"]


async def test_short_tasks_do_not_wait_behind_a_long_one(peer: Peer, new_worker: NewWorker) -> None:
    """The agent queues short tasks at a runner ahead of time; behind a long task the rest move elsewhere."""
    new_worker("--max-concurrent", "64", "--processes", "2")
    await peer.receive(session.Hello)
    for number in range(20):
        await peer.assign(f"warm{number}")
    await asyncio.gather(*(peer.receive(session.Done, f"warm{number}") for number in range(20)))
    raw = msgspec.Raw(b'{"seconds": 60}')
    short = [session.Assign(f"short{number}", 1, "echo") for number in range(30)]
    await peer.send(session.Assign("long", 1, "sleep", raw), *short)
    await asyncio.gather(*(peer.receive(session.Done, f"short{number}") for number in range(30)))


async def test_runner_death_is_reported_at_once_with_evidence(peer: Peer, new_worker: NewWorker) -> None:
    worker = new_worker()
    await peer.receive(session.Hello)
    await peer.assign("t", "sleep", {"seconds": 60})
    await peer.receive(session.Started, "t")
    os.kill(worker.runner(), signal.SIGKILL)
    died = await peer.receive(session.RunnerDied, "t")
    assert "killed by SIGKILL" in died.evidence
    await peer.assign("next")
    await peer.receive(session.Done, "next")


async def test_killed_worker_leaves_no_process(peer: Peer, new_worker: NewWorker, scale: Scale) -> None:
    worker = new_worker(*FAMILY)
    await peer.receive(session.Hello)
    await peer.assign("t", "python", QUICK)
    await peer.receive(session.Progress, "t")
    await asyncio.to_thread(grown_to, worker, 5)
    worker.signal(signal.SIGKILL)
    worker.process.wait()
    gone_within(worker, scale(test=60.0, accept=2.0))


async def test_stopped_worker_has_no_runner_after_its_lease(
    peer: Peer, new_worker: NewWorker, scale: Scale
) -> None:
    """A stopped agent cannot act, but the keepers know its lease and end the runners. After it continues, it
    starts again with no attempts, and reports nothing about the old attempt as if it were the new one."""
    peer.lease_s = SHORT_LEASE_S
    worker = new_worker(*FAMILY)
    hello = await peer.receive(session.Hello)
    await peer.assign("t", "python", QUICK)
    await peer.receive(session.Progress, "t")
    worker.signal(signal.SIGSTOP)
    stopped = time.monotonic()
    await asyncio.to_thread(gone_within, worker, scale(test=LATE_S, accept=0) + peer.lease_s)
    # The answer to its last renewal may wait in its socket: the keepers do not know that one.
    await asyncio.sleep(max(stopped + peer.lease_s + 0.1 - time.monotonic(), 0.0))
    peer.epoch += 1
    worker.signal(signal.SIGCONT)
    again = await peer.receive(session.Hello, after=1)
    assert (again.instance, again.running) == (hello.instance, ())
    await peer.assign("t", "echo", {}, attempt=2)
    assert (await peer.receive(session.Done, "t")).attempt == 2
    assert not [m for m in peer.received if isinstance(m, session.RunnerDied)]


async def test_worker_that_cannot_renew_kills_runners_before_its_lease_ends(
    peer: Peer, new_worker: NewWorker, scale: Scale
) -> None:
    peer.lease_s = SHORT_LEASE_S
    worker = new_worker(*FAMILY)
    await peer.receive(session.Hello)
    await peer.assign("t", "python", QUICK)
    await peer.receive(session.Progress, "t")
    peer.renews = peer.welcomes = False
    await asyncio.to_thread(gone_within, worker, scale(test=LATE_S, accept=0) + peer.lease_s)
    peer.renews = peer.welcomes = True
    count = sum(isinstance(m, session.Hello) for m in peer.received)
    assert (await peer.receive(session.Hello, after=count)).running == ()


async def test_task_continues_over_a_lost_connection(
    peer: Peer, new_worker: NewWorker, tmp_path: Path
) -> None:
    new_worker(*GATED)
    await peer.receive(session.Hello)
    await peer.assign("t", "python", until_there(tmp_path / "gate"))
    await peer.receive(session.Started, "t")
    await peer.drop()
    again = await peer.receive(session.Hello, after=1)
    assert (again.resume_epoch, again.running) == (peer.epoch, (session.Attempt("t", 1),))
    await peer.receive(session.Started, "t", after=1)
    (tmp_path / "gate").touch()
    await peer.receive(session.Done, "t")


async def test_many_large_results_are_split_into_frames(peer: Peer, new_worker: NewWorker) -> None:
    peer.renew_every_s = 20.0  # a busy machine may answer renewals late, and the worker would reconnect
    new_worker("--function", "large=tests.support.worker_functions:large", "--max-concurrent", "20")
    await peer.receive(session.Hello)
    parameters = {"function": "large", "arguments": {"size": 7 << 20}}
    for number in range(12):
        await peer.assign(f"t{number}", "python", parameters)
    for number in range(12):
        assert len(bytes((await peer.receive(session.Done, f"t{number}")).result)) > 7 << 20
    assert peer.connections == 1


async def test_result_is_sent_again_until_it_is_acknowledged(peer: Peer, new_worker: NewWorker) -> None:
    new_worker()
    await peer.receive(session.Hello)
    peer.acks = False
    await peer.assign("t", "echo", {"a": 1})
    await peer.receive(session.Done, "t")
    peer.acks = True
    await peer.drop()
    again = await peer.receive(session.Hello, after=1)
    assert again.unacked == (session.Attempt("t", 1),)
    assert msgspec.json.decode((await peer.receive(session.Done, "t", after=1)).result) == {"a": 1}
    await peer.drop()
    assert (await peer.receive(session.Hello, after=2)).unacked == ()


async def test_acknowledged_attempt_that_is_assigned_again_is_refused(
    peer: Peer, new_worker: NewWorker
) -> None:
    """The store has lost the outcome in a failover; ignored, the attempt would hold its slot forever."""
    new_worker()
    await peer.receive(session.Hello)
    await peer.assign("t", "echo", {"a": 1})
    await peer.receive(session.Done, "t")
    await peer.assign("t", "echo", {"a": 1})
    assert "lost it in a failover" in (await peer.receive(session.Refused, "t")).reason


async def test_worker_that_is_not_resumed_stops_its_attempts(
    peer: Peer, new_worker: NewWorker, scale: Scale
) -> None:
    worker = new_worker()
    await peer.receive(session.Hello)
    await peer.assign("t", "sleep", {"seconds": 60})
    await peer.receive(session.Started, "t")
    peer.resumes = False
    await peer.drop()
    await peer.receive(session.Hello, after=1)
    await asyncio.to_thread(gone_within, worker, scale(test=20.0, accept=2.0))
    await peer.assign("t", "echo", attempt=2)
    assert (await peer.receive(session.Done, "t")).attempt == 2


async def test_fenced_worker_stops_its_attempts_and_joins_again(
    peer: Peer, new_worker: NewWorker, scale: Scale
) -> None:
    worker = new_worker()
    await peer.receive(session.Hello)
    await peer.assign("t", "sleep", {"seconds": 60})
    await peer.receive(session.Started, "t")
    await peer.send(session.Goodbye("your lease was over", fenced=True))
    again = await peer.receive(session.Hello, after=1)
    assert (again.resume_epoch, again.running) == (0, ())
    await asyncio.to_thread(gone_within, worker, scale(test=20.0, accept=2.0))


@pytest.mark.parametrize(
    ("task_type", "parameters"),
    [
        pytest.param("sleep", {"seconds": 60}, id="cooperative"),
        pytest.param("command", {"arguments": ["sleep", "60"]}, id="a program"),
        pytest.param("python", {"function": "deaf", "arguments": {"seconds": 60}}, id="deaf"),
    ],
)
async def test_running_task_is_cancelled(
    peer: Peer, new_worker: NewWorker, task_type: str, parameters: object, scale: Scale
) -> None:
    new_worker(*DEAF, "--allow-command")
    await peer.receive(session.Hello)
    await peer.assign("t", task_type, parameters)
    await peer.receive(session.Started, "t")
    await peer.send(session.Cancel("t", 1, grace_s=0.3))
    await peer.receive(session.Cancelled, "t", within_s=scale(test=30.0, accept=3.0))
    await peer.assign("next")
    await peer.receive(session.Done, "next")


async def test_waiting_or_unknown_task_is_cancelled_at_once(peer: Peer, new_worker: NewWorker) -> None:
    new_worker()
    await peer.receive(session.Hello)
    await peer.assign("first", "sleep", {"seconds": 60})
    await peer.assign("second", "sleep", {"seconds": 60})
    await peer.receive(session.Started, "first")
    await peer.send(session.Cancel("second", 1), session.Cancel("never-seen", 1))
    await peer.receive(session.Cancelled, "second")
    await peer.receive(session.Cancelled, "never-seen")
    assert message_types(peer, "second") == ["Cancelled"]


async def test_time_limits_end_a_task(peer: Peer, new_worker: NewWorker) -> None:
    new_worker(*DEAF, "--max-concurrent", "2", "--processes", "2")
    await peer.receive(session.Hello)
    deaf = {"function": "deaf", "arguments": {"seconds": 60}}
    await peer.assign("hard", "python", deaf, soft_limit_s=0.2, timeout_s=0.6)
    await peer.assign("soft", "sleep", {"seconds": 60}, soft_limit_s=0.3, timeout_s=60)
    soft, hard = await peer.receive(session.Failed, "soft"), await peer.receive(session.Failed, "hard")
    assert (soft.error.type, soft.error.retryable) == ("SoftLimitReached", False)
    assert (hard.error.type, hard.error.retryable) == ("Timeout", False)
    assert "its limit of 0.6 s" in hard.error.message


async def test_runner_sees_its_devices_and_is_kept_for_the_next_task(
    peer: Peer, new_worker: NewWorker
) -> None:
    functions = "environment=tests.support.worker_functions:environment"
    worker = new_worker("--simulate", "2", "--function", functions, "--max-concurrent", "4")
    hello = await peer.receive(session.Hello)
    parameters = {"function": "environment", "arguments": {"name": simulated.VISIBLE_VARIABLE}}
    for task, indices in (("a", (1,)), ("b", (1,)), ("c", (0, 1))):
        await peer.assign(task, "python", parameters, devices=given(hello, *indices), memory_mib=10)
        done = await peer.receive(session.Done, task)
        assert msgspec.json.decode(done.result) == ",".join(hello.devices[index].uuid for index in indices)
        if task == "a":
            first = worker.below()
        if task == "b":
            assert worker.below() == first
    assert not set(worker.below()) & set(first), "the idle runner of device 1 made way for that of both"


async def test_memory_used_by_others_is_reported_and_refused(
    peer: Peer, new_worker: NewWorker, tmp_path: Path
) -> None:
    new_worker("--simulate", "1xL4:24GiB", "--max-concurrent", "4")
    hello = await peer.receive(session.Hello)
    await peer.assign("a", "vram", {"hold_s": 60}, devices=given(hello, 0), memory_mib=10_000)
    await peer.receive(session.Progress, "a")
    foreign = simulated.allocate(tmp_path / "gpus", hello.devices[0].uuid, 6_000)

    def both_seen() -> session.Report | None:
        reports = [m for m in peer.received if isinstance(m, session.Report) and m.readings[0].others_mib]
        return reports[-1] if reports else None

    reading = (await peer.until(both_seen)).readings[0]
    assert (reading.used_mib, reading.others_mib) == (16_000, 6_000)
    assert reading.held == (session.Held("a", 1, 10_000),)
    await peer.assign("b", "vram", {}, devices=given(hello, 0), memory_mib=9_000)
    refused = await peer.receive(session.Refused, "b")
    assert refused.reason == "device 0 has 8576 MiB free, the task needs 9000 MiB"
    foreign.free()
    await peer.assign("b", "vram", {}, devices=given(hello, 0), memory_mib=9_000, attempt=2)
    assert (await peer.receive(session.Done, "b")).attempt == 2


async def test_reserved_memory_is_not_given_twice(peer: Peer, new_worker: NewWorker) -> None:
    new_worker("--simulate", "1xL4:24GiB", "--max-concurrent", "4")
    hello = await peer.receive(session.Hello)
    await peer.assign("a", "sleep", {"seconds": 60}, devices=given(hello, 0), memory_mib=20_000)
    await peer.receive(session.Started, "a")
    await peer.assign("b", "sleep", {"seconds": 60}, devices=given(hello, 0), memory_mib=5_000)
    assert "device 0 has 4576 MiB free" in (await peer.receive(session.Refused, "b")).reason


async def test_drain_finishes_running_and_refuses_waiting_tasks(
    peer: Peer, new_worker: NewWorker, tmp_path: Path
) -> None:
    worker = new_worker(*GATED)
    await peer.receive(session.Hello)
    await peer.assign("running", "python", until_there(tmp_path / "gate"))
    await peer.assign("waiting", "sleep", {"seconds": 1})
    await peer.receive(session.Started, "running")
    worker.signal(signal.SIGTERM)
    await peer.receive(session.Leaving)
    await peer.receive(session.Refused, "waiting")
    await peer.assign("late")
    await peer.receive(session.Refused, "late")
    (tmp_path / "gate").touch()
    await peer.receive(session.Done, "running")
    assert await asyncio.to_thread(worker.process.wait, 60) == 0
    assert not worker.below()


async def test_drain_timeout_fails_the_task_as_retryable(peer: Peer, new_worker: NewWorker) -> None:
    worker = new_worker("--drain-s", "0.5")
    await peer.receive(session.Hello)
    await peer.assign("t", "sleep", {"seconds": 60})
    await peer.receive(session.Started, "t")
    worker.signal(signal.SIGTERM)
    failed = await peer.receive(session.Failed, "t")
    assert (failed.error.type, failed.error.retryable) == ("WorkerLeft", True)
    assert await asyncio.to_thread(worker.process.wait, 60) == 0


async def test_drained_worker_can_be_used_again(peer: Peer, new_worker: NewWorker, tmp_path: Path) -> None:
    new_worker(*GATED)
    await peer.receive(session.Hello)
    await peer.assign("running", "python", until_there(tmp_path / "gate"))
    await peer.assign("waiting", "sleep", {"seconds": 1})
    await peer.receive(session.Started, "running")
    await peer.send(session.Drain())
    await peer.receive(session.Refused, "waiting")
    assert message_types(peer, "running") == ["Started"]
    (tmp_path / "gate").touch()
    await peer.receive(session.Done, "running")
    await peer.assign("later")
    await peer.receive(session.Done, "later")


async def test_server_can_make_a_worker_leave(peer: Peer, new_worker: NewWorker) -> None:
    worker = new_worker()
    await peer.receive(session.Hello)
    await peer.send(session.Drain(leave=True))
    assert await asyncio.to_thread(worker.process.wait, 60) == 0


async def test_agent_never_loads_cuda(peer: Peer, new_worker: NewWorker) -> None:
    worker = new_worker("--simulate", "1")
    hello = await peer.receive(session.Hello)
    await peer.assign("t", "vram", {"mib": 5}, devices=given(hello, 0), memory_mib=5)
    await peer.receive(session.Done, "t")
    assert "libcuda" not in maps_of(worker)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(["--server", "nowhere"], "server 'nowhere' is not an address", id="server"),
        pytest.param(
            ["--token-file", "/no/such"],
            "--token-file /no/such cannot be read: no such file",
            id="token file",
        ),
        pytest.param(["--label", "zone"], "--label zone is not a pair", id="label"),
        pytest.param(["--token", "t", "--simulate", "many"], "does not describe GPUs", id="simulate"),
        pytest.param([], "no token for http://127.0.0.1:8000; give --token-file", id="no token"),
        pytest.param(
            ["--token", "t", "--function", "f=no_such_module:f"],
            "--function f=no_such_module:f cannot be imported: ModuleNotFoundError: No module named",
            id="no module",
        ),
        pytest.param(
            ["--token", "t", "--function", "f=json:no_such_function"],
            "has no no_such_function; install the module here, or start the worker in its folder",
            id="no function",
        ),
        pytest.param(
            ["--token", "t", "--max-concurrent", "0"], "--max-concurrent is 0", id="nothing at once"
        ),
    ],
)
def test_bad_options_are_reported_in_one_line(options: list[str], message: str, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("gpu-orchestrator")), "worker", *options]
    alone = {**os.environ, "HOME": str(tmp_path)}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20, env=alone)
    assert ran.returncode == 2
    assert message in ran.stderr
    assert ran.stderr.count("\n") == 1


async def test_unknown_token_ends_the_worker(peer: Peer, tmp_path: Path) -> None:
    worker = Worker(peer.url, tmp_path / "log", token="wrong")
    assert await asyncio.to_thread(worker.process.wait, 30) == 1
    assert f"the token was refused by {peer.url};" in worker.log.read_text().splitlines()[-1]


@pytest.mark.parametrize(("style", "first"), [("text", "20"), ("auto", "{"), ("json", "{")])
async def test_log_has_the_configured_format(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, style: str, first: str
) -> None:
    monkeypatch.setenv("LOG_FORMAT", style)
    worker = Worker(peer.url, tmp_path / "log")
    await peer.receive(session.Report)
    worker.close()
    logged = worker.log.read_text()
    assert logged.startswith(first)
    assert ("worker starts  name=w devices=0" in logged) == (style == "text")


async def test_module_in_the_current_folder_runs_and_replaces_none_of_python(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit('the wrong module')\n")
    (tmp_path / "mine.py").write_text("import random\ndef train(): return random.randint(7, 7)\n")
    monkeypatch.chdir(tmp_path)
    worker = Worker(peer.url, tmp_path / "log", "--function", "train=mine:train")
    await peer.receive(session.Hello)
    await peer.assign("t", "python", {"function": "train"})
    assert msgspec.json.decode((await peer.receive(session.Done, "t")).result) == 7
    worker.close()
