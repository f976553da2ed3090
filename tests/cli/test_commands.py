"""Client commands against a real server: what people type in their first hour, and what they read then."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from controlplane.cluster import free_port
from tests.support.command_line import COMMAND, User, serving

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    with serving(tmp_path_factory.mktemp("cli")) as running:
        yield running


def submitted(user: User, *words: str) -> str:
    return user.says("task", "submit", *words, "-q").strip()


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        pytest.param(('{"a": 1}',), "", id="JSON"),
        pytest.param(("a=1",), "", id="pairs"),
        pytest.param(("@p.json",), "", id="file"),
        pytest.param(("-",), '{"a": 1}', id="stdin"),
    ],
)
def test_parameters_arrive_however_they_are_given(user: User, words: tuple[str, ...], stdin: str) -> None:
    (user.folder / "p.json").write_text('{"a": 1}')
    said = user.says("task", "submit", "echo", *words, "--gpus", "0", "--wait", "-q", stdin=stdin)
    assert json.loads(said) == {"a": 1}


def test_quiet_submission_prints_the_id_alone(user: User) -> None:
    task = submitted(user, "echo", "--gpus", "0")
    assert re.fullmatch("[0-9a-f]{32}", task)
    assert user.json("task", "get", task)["task_id"] == task


def test_wait_prints_the_id_at_once_and_then_a_card(user: User) -> None:
    done = user.run("task", "submit", "sleep", "seconds=0.2", "--gpus", "0", "--wait")
    assert done.returncode == 0
    assert re.fullmatch("task [0-9a-f]{32}\n", done.stderr)
    card = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if not line.startswith(" "))
    assert card["status"] == "completed"
    assert done.stderr.split()[1] == card["task"]
    assert re.fullmatch(r"\d\d:\d\d:\d\d \(\ds ago\)", card["ended"])


def test_failed_task_ends_the_wait_with_1_and_its_error(user: User) -> None:
    done = user.run("task", "submit", "sleep", "seconds=minus", "--gpus", "0", "--retries", "0", "--wait")
    assert done.returncode == 1
    assert "BadParameters: " in done.stdout


def test_interrupted_wait_says_what_goes_on(user: User) -> None:
    with user.start("task", "submit", "sleep", "seconds=60", "--gpus", "0", "--wait") as waiting:
        assert waiting.stderr is not None
        task = waiting.stderr.readline().split()[1]
        waiting.send_signal(signal.SIGINT)
        _, rest = waiting.communicate(timeout=30)
    assert waiting.returncode == 130
    assert rest == f"task {task} goes on; cancel it with: gpu-orchestrator task cancel {task}\n"
    assert "cancel" in user.says("task", "cancel", task)


def test_wait_gives_up_in_time_and_says_so(user: User) -> None:
    task = submitted(user, "sleep", "seconds=60", "--gpus", "0")
    done = user.run("task", "wait", task, "--timeout", "0.5")
    assert done.returncode == 1
    assert f"wait again with: gpu-orchestrator task wait {task}" in done.stderr
    user.says("task", "cancel", task)


def test_list_in_a_pipe_is_whole(user: User) -> None:
    ids = {submitted(user, "echo", "--gpus", "0") for _ in range(3)}
    done = user.run("task", "list", "--limit", "3")
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["TASK", "STATUS", "TYPE", "WORKER", "GPUS", "AGE", "DURATION", "DETAIL"]
    assert {row.split()[0] for row in rows} == ids
    assert "\x1b" not in done.stdout
    assert re.fullmatch(r"3 of \d+ \(--limit, --offset\)\n", done.stderr)


def test_running_task_shows_how_long_it_runs(user: User) -> None:
    task = submitted(user, "sleep", "seconds=60", "--gpus", "0")
    with user.start("task", "watch", task) as watching:
        assert watching.stdout is not None
        assert any("running on " in line for line in watching.stdout)
        watching.kill()
    (row,) = user.says("task", "list", "--status", "running").splitlines()[1:]
    assert re.search(r"\d+s +-$", row), row
    user.says("task", "cancel", task)


def test_watched_task_is_one_line_per_change(user: User) -> None:
    task = submitted(user, "sleep", "seconds=1", "--gpus", "0")
    done = user.run("task", "watch", task)
    assert done.returncode == 0
    states = [line.split()[1].rstrip(",") for line in done.stdout.splitlines()]
    assert states[-1] == "completed"
    assert len(states) == len(set(states))


def test_events_of_one_type_are_followed(user: User) -> None:
    latest = user.json("events", "--limit", "1")["next"]
    bad = submitted(user, "sleep", "seconds=minus", "--gpus", "0", "--retries", "0")
    with user.start("events", "-f", "--type", "task_failed", "--after", latest) as failing:
        assert failing.stdout is not None
        assert any(bad in line and "task_failed" in line for line in failing.stdout)
        failing.send_signal(signal.SIGINT)
        assert failing.wait(30) == 130


def test_rare_events_are_found_among_many(user: User) -> None:
    bad = submitted(user, "sleep", "seconds=minus", "--gpus", "0", "--retries", "0")
    assert user.run("task", "wait", bad).returncode == 1
    for _ in range(3):
        user.says("task", "submit", "echo", "--gpus", "0", "--wait", "-q")
    found = user.json("events", "--type", "task_failed", "--limit", "1")["events"]
    assert [each["data"]["task_id"] for each in found] == [bad]


def test_changes_of_all_tasks_are_lines_in_a_pipe(user: User) -> None:
    """The stream begins when it connects: submit tasks until one is shown."""
    with user.start("task", "watch") as watching:
        assert watching.stdout is not None
        shown = Thread(target=watching.stdout.readline)
        shown.start()
        for _ in range(100):
            task = submitted(user, "echo", "--gpus", "0")
            shown.join(0.1)
            if not shown.is_alive():
                break
        last = submitted(user, "echo", "--gpus", "0")
        assert any(last in line and "task_completed" in line for line in watching.stdout), task
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 130


def test_closed_pipe_keeps_the_exit_code(user: User) -> None:
    script = f"{COMMAND} task list --json | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=user.folder, env=user.environ, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("{\n0\n", "")


def test_plain_locale_gets_plain_letters(user: User) -> None:
    assert "2 x L4" in user.spawn("worker", "list", LC_ALL="POSIX", PYTHONUTF8="0").stdout
    assert "2 × L4" in user.spawn("worker", "list", LC_ALL="C.UTF-8").stdout


def test_bad_setting_of_a_server_does_not_stop_a_client(user: User, tmp_path: Path) -> None:
    (user.folder / ".env").write_text("TASK_TIMEOUT=abc\n")
    try:
        assert user.says("task", "list")
    finally:
        (user.folder / ".env").unlink()


def test_device_is_cordoned_and_shown(user: User) -> None:
    (name,) = [each["worker_id"] for each in user.json("worker", "list")["workers"]]
    user.says("worker", "cordon", name, "--device", "1")
    assert "2 × L4 (1 cordoned)" in user.says("worker", "list")
    shown = user.says("worker", "show", name)
    assert re.search(r"^1 +cordoned +L4 +24GB", shown, re.MULTILINE)
    assert re.search(r"^task types +.*echo", shown, re.MULTILINE)
    user.says("worker", "uncordon", name, "--device", "1")
    assert "cordoned" not in user.says("worker", "list")
    assert "has no device 7" in user.refused("worker", "cordon", name, "--device", "7")


def test_worker_is_removed(user: User) -> None:
    assert "there is no worker nosuch" in user.refused("worker", "remove", "nosuch", "--now")
    assert "there is no worker nosuch" in user.refused("worker", "restart", "nosuch")


def test_status_is_a_card(user: User) -> None:
    said = user.says("status")
    assert re.search(r"^workers +1 of 1 online$", said, re.MULTILINE)
    assert "GPU_MEMORY_THRESHOLD" in said


def test_login_from_another_machine(user: User, tmp_path: Path) -> None:
    made = user.says("key", "create", "ann", "--limit", "running_tasks=4")
    url = json.loads((user.folder / "data" / "client.json").read_text())["url"]
    assert f"Give it to ann, for: gpu-orchestrator login {url}" in made
    key = next(line for line in made.splitlines() if line.startswith("gpo_"))
    laptop = User(tmp_path)
    assert "asks for a key; get one from its operator, then run" in laptop.refused(
        "task", "list", "--url", url
    )
    assert "does not accept this key" in laptop.refused("login", url, stdin="gpo_wrong\n")
    assert not (tmp_path / "config").exists()
    assert "logged in to" in laptop.says("login", url, stdin=key + "\n")
    stored = tmp_path / "config" / "gpu-orchestrator" / "client.json"
    assert stored.stat().st_mode & 0o777 == 0o600
    assert laptop.says("key", "show") == key + "\n"
    task = laptop.says("task", "submit", "echo", "--gpus", "0", "-q", "--wait")
    assert json.loads(task) == {}
    assert "admin is needed" in laptop.refused("key", "list")
    assert re.search(r"^running tasks +0 +4$", laptop.says("key", "limits"), re.MULTILINE)
    assert "is removed" in laptop.says("logout")
    assert "this machine has no key for" in laptop.refused("key", "show", "--url", url)
    (tmp_path / "key").write_text(key)
    assert laptop.says("--url", url, "--key-file", "key", "task", "list")
    assert laptop.says("task", "list", GPU_ORCHESTRATOR_URL=url, API_KEY=key)


def test_worker_key_is_for_workers(user: User, tmp_path: Path) -> None:
    made = user.json("key", "create", "box", "--scope", "worker")
    url = json.loads((user.folder / "data" / "client.json").read_text())["url"]
    assert "this is a key for workers" in User(tmp_path).refused("login", url, stdin=made["key"])


def test_key_list_shows_limits(user: User) -> None:
    user.says("key", "create", "few", "--limit", "queued_tasks=7", "--expires", "90d")
    row = next(line for line in user.says("key", "list").splitlines() if " few " in line)
    assert "in 89d" in row or "in 90d" in row
    assert "7 waiting tasks" in row


def test_refusals_name_options(user: User) -> None:
    assert "--gpus" in user.refused("task", "submit", "echo", "--gpus", "99")
    assert "did you mean 'echo'" in user.refused("task", "submit", "ech")
    assert "no worker can ever take this" in user.refused("task", "submit", "echo", "--memory", "900GB")
    assert "there is no task" in user.refused("task", "get", "f" * 32)


def test_doctor_checks_the_cluster_manager(user: User) -> None:
    said = user.says("doctor")
    for what in (
        "address",
        "data directory",
        "server: healthy",
        "clock",
        "key: bootstrap",
        "workers: 1",
        "GPUs: 2",
    ):
        assert f"ok      {what}" in said
    assert "-       Kubernetes: no cluster is configured" in said


def test_doctor_says_what_is_wrong(user: User, tmp_path: Path) -> None:
    url = json.loads((user.folder / "data" / "client.json").read_text())["url"]
    nobody = User(tmp_path)
    done = nobody.run("doctor", "--url", url)
    assert done.returncode == 1
    assert "failed  key: " in done.stderr
    gone = nobody.run("doctor", "--url", f"http://127.0.0.1:{free_port()}")
    assert gone.returncode == 1
    assert "failed  server: no cluster manager answers at" in gone.stderr


def test_audit_has_whole_ids(user: User) -> None:
    task = submitted(user, "echo", "--gpus", "0")
    row = next(line for line in user.says("audit", "--limit", "20").splitlines() if task in line)
    assert "POST /tasks" in row


def test_backup_words(user: User) -> None:
    done = user.says("backup", "all.backup")
    assert re.fullmatch(r"all\.backup: \d+ tasks?, results, keys \(as hashes\), .* the audit log\n", done)
    assert "there is no folder /nosuch; create it first" in user.refused("backup", "/nosuch/x")
    (user.folder / "notes.txt").write_text("deadline")
    refused = user.refused("restore", "notes.txt", "--data", "new")
    assert refused.endswith("notes.txt is not a backup, or it is damaged; give a file that `backup` wrote")
    said = user.says("restore", "all.backup", "--data", "new")
    assert f"put client.json, worker-token, callback-secret, secrets-key back into {user.folder}/new" in said
    assert "not empty" in user.refused("restore", "all.backup", "--data", "new")
