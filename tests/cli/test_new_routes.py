"""Commands that use filters, prefixes of ids, bulk changes, devices and logs of a real server."""

import re
from collections.abc import Iterator

import pytest

from tests.support.command_line import User, serving

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    with serving(tmp_path_factory.mktemp("routes")) as running:
        yield running


def submitted(user: User, *words: str) -> str:
    return user.says("task", "submit", *words, "-q").strip()


def ids(user: User, *words: str) -> set[str]:
    return {line.split()[0] for line in user.says("task", "list", *words).splitlines()[1:]}


def test_beginning_of_an_id_is_enough(user: User) -> None:
    task = submitted(user, "echo", "--gpus", "0")
    for words in (("get",), ("wait",), ("explain",)):
        assert user.json("task", *words, task[:12])["task_id"] == task
    assert "there is no task" in user.refused("task", "get", "ffffffff")


def test_tasks_are_chosen_by_label_type_and_age(user: User) -> None:
    red = submitted(user, "echo", "--gpus", "0", "--label", "colour=red", "--label", "team=x")
    blue = submitted(user, "sleep", "seconds=0", "--gpus", "0", "--label", "colour=blue", "--label", "team=x")
    assert ids(user, "--label", "colour=red") == {red}
    assert ids(user, "--label", "team=x") == {red, blue}
    assert ids(user, "--label", "team=x", "--type", "sleep") == {blue}
    assert {red, blue} <= ids(user, "--since", "10m")
    assert ids(user, "--label", "team=x", "--since", "2099-01-01T00:00:00Z") == set()
    assert ids(user, "--label", "team=x", "--owner", "nobody") == set()


def test_several_tasks_are_cancelled_and_retried(user: User) -> None:
    tasks = [submitted(user, "sleep", "seconds=60", "--gpus", "0", "--label", "batch=1") for _ in range(3)]
    done = user.run("task", "cancel", tasks[0], tasks[1], "f" * 32)
    assert done.returncode == 1
    assert "1 of 3 tasks could not be cancelled" in done.stderr
    assert len(re.findall(r"cancel(?:led|ling)", done.stdout)) >= 2
    assert tasks[2] in user.says("task", "cancel", "--label", "batch=1")
    for task in tasks:
        user.run("task", "wait", task, "--timeout", "30")
    retried = user.says("task", "retry", "--status", "cancelled", "--label", "batch=1")
    assert all(task in retried for task in tasks)
    user.says("task", "cancel", "--all")
    assert "no task to retry" in user.run("task", "retry", "--label", "batch=none").stderr


def test_task_shows_the_device_it_got(user: User) -> None:
    task = submitted(user, "echo", "--memory", "4GB")
    assert user.run("task", "wait", task, "--timeout", "30").returncode == 0
    card = user.says("task", "get", task)
    assert re.search(r"^devices +[01]  L4  GPU-", card, re.MULTILINE), card
    wide = next(line for line in user.says("task", "list", "--wide").splitlines() if line.startswith(task))
    assert re.search(r"#[01] .* L4 GPU-", wide)
    assert "4GB" in wide


def test_waiting_task_says_why_and_where_it_stands(user: User) -> None:
    holding = [submitted(user, "sleep", "seconds=60") for _ in range(2)]
    waits = submitted(user, "sleep", "seconds=60")
    row = next(line for line in user.says("task", "list").splitlines() if line.startswith(waits))
    assert re.search(r"queued .* #1: 1 has no wholly free GPU", row), row
    user.says("task", "cancel", *holding, waits)


def test_task_with_a_time_is_shown_cancelled_and_retried(user: User) -> None:
    task = submitted(user, "echo", "--gpus", "0", "--not-before", "1h", "--expires", "2h")
    assert task in ids(user, "--status", "scheduled")
    shown = user.says("task", "get", task)
    assert "not before" in shown
    assert re.search(r"expires +.*in 2h", shown) or re.search(r"expires +.*in 1h", shown)
    assert "not before" in user.says("task", "explain", task)
    user.says("task", "cancel", task)
    assert user.json("task", "get", task)["status"] == "cancelled"
    user.says("task", "retry", task)
    assert user.json("task", "wait", task)["status"] == "completed"


def test_pool_and_label_that_no_worker_has_are_refused(user: User) -> None:
    refused = user.run("task", "submit", "echo", "--gpus", "0", "--pool", "a100", "--worker-label", "zone=b")
    assert refused.returncode == 1
    assert "is not in pool a100 and does not have the label zone=b" in refused.stderr
    wrong = user.run("task", "submit", "echo", "--worker-label", "zone")
    assert (wrong.returncode, "write --worker-label KEY=VALUE" in wrong.stderr) == (2, True)


def test_logs_are_shown_and_followed(user: User) -> None:
    task = submitted(user, "vram", "mib=abc", "--retries", "0")  # fails with a traceback
    followed = user.says("task", "logs", task, "-f")
    assert followed == user.says("task", "logs", task)
    assert user.says("task", "logs", task, "--tail", "1").count("\n") <= 1
    assert "there is no task" in user.refused("task", "logs", "f" * 32)
