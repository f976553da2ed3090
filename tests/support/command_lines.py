"""Random command lines as people type them: right, misspelt, incomplete, with odd values in odd places.

None of them runs until it is stopped: commands that start or follow something appear only with a mistake that
keeps them from it.
"""

from random import Random

ID = "3f2a9c4e3f2a9c4e3f2a9c4e3f2a9c4e"
GOOD = (
    "status",
    "status --json",
    "task list",
    "task list --limit 3 --wide",
    "task list --status queued,running --json",
    "task list --worker vm --offset 2",
    f"task get {ID}",
    f"task wait {ID} --timeout 1",
    f"task explain {ID}",
    f"task cancel {ID}",
    f"task retry {ID} --json",
    "task submit echo a=1 --gpus 0 --wait",
    "task submit echo {} --gpus 0 -q",
    "task submit sleep seconds=0 --gpus 0 --label team=x --json",
    "task submit echo --memory 900GB",
    "task submit nosuch",
    "worker list",
    "worker list --status online --gpu-type L4",
    "worker show vm",
    "worker show nosuch",
    "worker cordon nosuch --device 1",
    "worker drain nosuch",
    "worker remove nosuch --now",
    "events --limit 5",
    "events --type task_failed --utc",
    "key list",
    "key create ann --expires 90d --limit running_tasks=4",
    "key revoke nosuch",
    "key limits",
    "key show",
    "audit --limit 3",
    "doctor",
    "logout",
    "completion bash",
    "backup /nosuch/folder/file",
    "restore /nosuch/file",
    "login http://127.0.0.1:1 --key-file /nosuch",
    "--help",
    "task --help",
    "task submit --help",
    "worker --help",
    "--version",
    "help task",
)
OF_WORKERS = ("list", "show", "cordon", "drain", "remove")
BAD = (
    "up --simulat 4",
    "up --port http",
    "server --port",
    "worker lst",
    "worker --max-concurrent many",
    "operator --leader-elct",
    "scheduler --lock nothing",
    "task watch a b c",
    "events --follow=perhaps",
    "task logs",
)
ODD = (
    "",
    " ",
    "-",
    "--",
    "---",
    "-x",
    "=",
    "@",
    "@/nosuch",
    "{",
    "[[[[",
    "nul",
    "0",
    "-1",
    "1e999",
    "9" * 40,
    "x" * 5000,
    "é",
    "日本語",
    "\u202e",
    "a\nb",
    "\x1b[2J",
    "../..",
    "a/b?c=d&e#f",
    "%2e%2e",
    "%",
    "\udcff",
    "--limit",
    "--json",
    "--status=",
    "--url=http://127.0.0.1:1",
    "--url=ftp://x",
    "--url=http://[::1",
    "--key-file=/nosuch",
    "--ca=/nosuch",
    "--label",
    "--gpus=-1",
    "--gpus=65",
    "--priority=very",
    "--timeout=soon",
)


def lines(seed: int, count: int) -> list[list[str]]:
    """Return this many command lines, the same for the same seed."""
    rng = Random(seed)
    return [_line(rng) for _ in range(count)]


def _line(rng: Random) -> list[str]:
    if rng.random() < 0.15:
        return rng.choice(BAD).split()
    words = rng.choice(GOOD).split()
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        words = _spoiled(words, rng)
    return [*words, "--nonsense"] if _starts_something(words) else words


def _starts_something(words: list[str]) -> bool:
    """Return True for `worker` without one of its commands: it would run a worker."""
    command, *rest = [*(each for each in words if not each.startswith("-")), ""]
    return command == "worker" and (not rest or rest[0] not in OF_WORKERS or words[:1] != ["worker"])


def _spoiled(words: list[str], rng: Random) -> list[str]:
    at = rng.randrange(len(words) + 1)
    match rng.randrange(5):
        case 0:
            return [*words[:at], *words[at + 1 :]]
        case 1 if at < len(words) and len(words[at]) > 1:
            return [*words[:at], _misspelt(words[at], rng), *words[at + 1 :]]
        case 2 if at < len(words):
            return [*words[: at + 1], *words[at:]]
        case 3 if at < len(words):
            return [*words[:at], rng.choice(ODD), *words[at + 1 :]]
    return [*words[:at], rng.choice(ODD), *words[at:]]


def _misspelt(word: str, rng: Random) -> str:
    at = rng.randrange(len(word) - 1)
    swapped = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return rng.choice((swapped, word[:at] + word[at + 1 :], word[: at + 1] + word[at:]))
