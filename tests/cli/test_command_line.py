"""The command line itself: help for everything, and mistakes as one plain line with exit code 2."""

import gc
import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App

from gpu_orchestrator.cli import collector, main, output
from gpu_orchestrator.cli.tables import Page
from tests.support.workers import compiled

COMMAND = str(Path(sys.executable).with_name("gpu-orchestrator"))


def pages(app: App, chain: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    """Yield every command that has a page."""
    for name in app:
        if not name.startswith("-"):
            command = app[name]
            yield (*chain, name), command
            yield from pages(command, (*chain, name))


def help_of(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main.run([*words, "--help"])
    assert ended.value.code in (0, None)
    return capsys.readouterr().out


PAGES = [" ".join(chain) for chain, _ in pages(main.application())]


def test_garbage_is_collected_as_usual_once_a_process_runs() -> None:
    usual = gc.get_threshold()
    try:
        collector.pause()
        assert gc.get_threshold() > usual
        collector.resume()
        assert gc.get_threshold() == usual
    finally:
        gc.set_threshold(*usual)


def test_first_page_says_a_line_about_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    page = help_of(capsys=capsys)
    for each in main.COMMANDS:
        assert any(line.split()[:1] == [each.name] and len(line.split()) > 3 for line in page.splitlines()), (
            each.name
        )
    assert page.index("Use it:") < page.index("Operate it:") < page.index("On Kubernetes:")


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_option_has_help(page: str) -> None:
    app = main.application(page.split())
    command = app
    for name in page.split():
        command = command[name]
    assert command.help.strip()
    if command.default_command is None:
        return
    with app.app_stack(page.split()):
        for argument in command.assemble_argument_collection(parse_docstring=True):
            if argument.show:
                assert argument.parameter.help, argument.names


@pytest.mark.parametrize("page", PAGES)
def test_page_has_no_box_and_no_noise(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(*page.split(), capsys=capsys)
    assert text.startswith(f"Usage: gpu-orchestrator {page}")
    assert not {"│", "╭"} & set(text)
    for noise in ("--empty-", "--no-allow", "[default: False]", '[default: ""]', "[default: None]"):
        assert noise not in text
    talks_to_a_server = "--url URL" in text
    takes_a_certificate = page in ("worker", "login")
    assert ("--ca" in text) == (talks_to_a_server or takes_a_certificate)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("lst", "unknown command lst; known: up, status, task,"),
        ("tsk list", "unknown command tsk; did you mean task?"),
        ("worker lst", "unknown command lst; did you mean list?"),
        ("task lst", "unknown command lst; did you mean list?"),
        ("task ls", "unknown command ls; did you mean list?"),
        ("logs 3f2a", "unknown command logs; did you mean task logs?"),
        ("ps", "unknown command ps; did you mean task list?"),
        ("task submit echo --gpus 2.5", "--gpus 2.5 is not a whole number"),
        ("up --port 80.5", "--port 80.5 is not a whole number"),
        ("task list --limit 1.5", "--limit 1.5 is not a whole number"),
        ("task list --utc", "unknown option --utc; `gpu-orchestrator task list --help` lists them"),
        ("task submit echo =1", "=1 has no name; give pairs such as seconds=1"),
        ("task submit echo a=1 b=2 a=3", "a is given twice; give it once"),
        ("task rm 3f2a", "unknown command rm; did you mean cancel?"),
        ("worker rm vm", "unknown command rm; did you mean remove?"),
        ("key delete 3f2a", "unknown command delete; did you mean revoke?"),
        ("worker get vm", "unknown command get; did you mean show?"),
        ("version", "unknown command version; did you mean --version?"),
        ("status --yaml", "unknown option --yaml; `gpu-orchestrator status --help` lists them"),
        ("task frobnicate", "unknown command frobnicate; known: "),
        ("task get", "TASK_ID is missing; see `gpu-orchestrator task get --help`"),
        (
            "task get a b",
            "b is too much here; `gpu-orchestrator task get --help` shows what the command takes",
        ),
        ("task list --limit abc", "--limit abc is not a whole number"),
        ("task list --limit", "--limit needs a value; see `gpu-orchestrator task list --help`"),
        ("task list --limit 1 --limit 2", "--limit is given twice; give it once"),
        ("task list --statu queued", "unknown option --statu; did you mean --status?"),
        ("task list --xyzzy", "unknown option --xyzzy; `gpu-orchestrator task list --help` lists them"),
        (
            "task list --status quened",
            "unknown status quened; did you mean queued? known: scheduled, queued, assigned, running,",
        ),
        ("task list -- extra", "extra is too much here"),
        ("task submit echo --label x", "--label x is not a label; write --label KEY=VALUE"),
        (
            "task submit echo --timeout soon",
            "--timeout soon is not a time; write seconds, or for example 30m",
        ),
        ("task cancel", "say which: ids of tasks, --all, or --status,"),
        ("task cancel a --all", "say one of these, not several:"),
        ("task logs a --tail -3", "--tail -3 is not a number of lines; write 0 or more"),
        ("key create ann --scope root", "--scope root is not one of read, submit, admin, worker"),
        (
            "doctor --component scheduller",
            "is not one of operator, scheduler, webhook, agent; did you mean scheduler?",
        ),
        ("events --type task_faild", "unknown type task_faild; did you mean task_failed? known:"),
        ("completion tcsh", "SHELL tcsh is not one of bash, zsh, fish"),
        ("up --simulat 4", "unknown option --simulat; did you mean --simulate?"),
        ("operator --ca x", "unknown option --ca"),
        ("--ca x operator", "unknown option --ca"),
    ],
)
def test_mistake_is_one_plain_line(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.run(line.split())
    assert ended.value.code == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("gpu-orchestrator: ")
    assert message in told


@pytest.mark.parametrize(
    ("words", "placed"),
    [
        ("--url U task list", "task list --url U"),
        ("--ca=F --key-file K task get a", "task get a --ca=F --key-file K"),
        ("--url U task submit echo -- --odd", "task submit echo --url U -- --odd"),
        ("task list --url U", "task list --url U"),
    ],
)
def test_options_of_the_client_may_stand_first(words: str, placed: str) -> None:
    assert main.in_place(words.split()) == placed.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.run(["completion", shell])
    script = capsys.readouterr().out
    assert "gpu-orchestrator" in script
    for word in ("cordon", "idempotency-key", "leader-elect"):
        assert word in script


def test_bash_completes_after_the_script_was_sourced(tmp_path: Path) -> None:
    script = (
        f'eval "$({COMMAND} completion bash)"; COMP_WORDS=(gpu-orchestrator task ca); COMP_CWORD=2; '
        'COMP_LINE="gpu-orchestrator task ca"; COMP_POINT=${#COMP_LINE}; '
        "$(complete -p gpu-orchestrator | sed 's/.*-F \\([^ ]*\\).*/\\1/'); echo \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environ(tmp_path), timeout=60
    )
    assert done.stdout.split() == ["cancel"], done.stderr


def environ(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in compiled().items() if not name.startswith(("GPU_ORCH", "API_KEY"))}
    return {**kept, "HOME": str(home), "XDG_CONFIG_HOME": str(home / "config"), "DATA_DIR": str(home), **more}


def test_closed_pipe_is_no_error(tmp_path: Path) -> None:
    script = (
        f"{COMMAND} completion zsh | head -1; echo ${{PIPESTATUS[0]}}; set -o pipefail; {COMMAND} -h | true"
    )
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environ(tmp_path), timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "0"


def test_failure_keeps_its_code_if_nobody_reads_it(tmp_path: Path) -> None:
    script = f"{COMMAND} lst 2>&1 | true; echo ${{PIPESTATUS[0]}}; {COMMAND} lst >&- 2>&-; echo $?"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environ(tmp_path), timeout=60
    )
    assert (done.stdout.split(), done.stderr) == (["2", "2"], "")


@pytest.mark.parametrize(("locale", "shown"), [("POSIX", "4 x L4 ... ?"), ("C.UTF-8", "4 × L4 … 日")])
def test_any_locale_can_be_written_to(locale: str, shown: str, tmp_path: Path) -> None:
    code = (
        "from gpu_orchestrator.cli import output; output.prepare(); output.say('4 \\xd7 L4 \\u2026 \\u65e5')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env=environ(tmp_path, LC_ALL=locale, PYTHONUTF8="0"),
        timeout=60,
    )
    assert (done.returncode, done.stdout.decode().strip()) == (0, shown), done.stderr


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "77")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert output.page(Terminal()) == Page(77, colour=True)
    assert output.page(io.StringIO()) == Page(None, colour=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert output.page(Terminal()) == Page(77, colour=False)
