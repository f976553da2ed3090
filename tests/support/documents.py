"""Commands in Markdown documents, so that tests can run them as they are written.

The line before a block of language `sh` or `console` says what becomes of it:

    <!-- run by tests/test_readme.py -->             that test runs it
    <!-- kept running by tests/test_readme.py -->    that test starts it and ends it after the last block
    <!-- not run: needs an image registry -->        no test runs it, for this reason

`tests/test_documents.py` lists the documents, and fails for a block that says neither. In a `console` block
a line that begins with `$ ` is a command, which goes on to `END` if it ends with `<<'END'`; the lines after
it are what it prints.
"""

import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from tests.support.paths import ROOT

LANGUAGES = ("sh", "console")
BLOCK = re.compile(r"^(?P<before>[^\n]*)\n```(?P<language>\w+)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
RUN_BY = re.compile(r"<!-- (?P<how>run|kept running) by (?P<test>\S+) -->")
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.+) -->")
HERE_DOCUMENT = re.compile(r"<<'(\w+)'$")
"""A command that goes on to the line with this word."""

CHANGING = (
    (re.compile(r"\b(\d+[dhms])+\b"), "AGE"),
    (re.compile(r"-job-[0-9a-f]{8}"), "-job-ID"),
    (re.compile(r"\b(gpu|cheap|claim)-node-\d+"), r"\1-node-N"),
)
"""What differs from run to run in an output: ages, ids, and which of several equal nodes was chosen."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of commands. `test` is the file that runs it, `reason` why none does; one of them is set.
    `stays`: it is a process that a person leaves running in a terminal of its own."""

    document: Path
    line: int
    language: str
    code: str
    test: str = ""
    stays: bool = False
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"

    @property
    def steps(self) -> list["Step"]:
        """Return the commands with the output that the document promises; a `sh` block is one step."""
        return [Step(self.code)] if self.language == "sh" else list(_steps(self.code))


@dataclass(frozen=True, slots=True)
class Step:
    """A command, and the output that follows it in a `console` block; empty if none does."""

    command: str
    output: str = ""


def blocks(document: str) -> list[Block]:
    """Return the blocks of commands of a document, given by its path in the repository."""
    path = ROOT / document
    text = path.read_text()
    return [
        _block(path, text[: found.start("code")].count("\n") + 1, found)
        for found in BLOCK.finditer(text)
        if found["language"] in LANGUAGES
    ]


def _block(path: Path, line: int, found: re.Match[str]) -> Block:
    run, left = RUN_BY.fullmatch(found["before"]), NOT_RUN.fullmatch(found["before"])
    return Block(
        path,
        line,
        found["language"],
        found["code"],
        test=run["test"] if run else "",
        stays=run is not None and run["how"] == "kept running",
        reason=left["reason"] if left else "",
    )


def run_by(test: str, document: str) -> list[Block]:
    """Return the blocks of the document that this test file must run, in order."""
    return [block for block in blocks(document) if block.test == test]


def _steps(code: str) -> Iterator[Step]:
    for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        ends = HERE_DOCUMENT.search(lines[0])
        last = (
            lines.index(ends[1]) if ends else next(at for at, line in enumerate(lines) if line[-1:] != "\\")
        )
        yield Step("\n".join(lines[: last + 1]), "\n".join(lines[last + 1 :]).strip())


def type_in(
    chosen: Sequence[Block], *, cwd: Path, env: Mapping[str, str], patience_s: float = 60.0
) -> list[str]:
    """Run the blocks one after the other, as a person types them; return what each step printed.

    Exported variables and the folder last from step to step. A step that promises an output is repeated
    until it prints that: a person, too, looks again if the answer is not there yet.
    """
    printed: list[str] = []
    shell = _Shell(cwd, env)
    with ExitStack() as processes:
        for block in chosen:
            if block.stays:
                processes.enter_context(shell.kept_running(block))
                continue
            printed += [_until_as_promised(shell, step, block, patience_s) for step in block.steps]
    return printed


def _until_as_promised(shell: "_Shell", step: Step, block: Block, patience_s: float) -> str:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            printed = shell.run(step.command)
        except CommandFailed as error:
            raise AssertionError(f"{block}: {error}") from None
        if not step.output or same(step.output, printed):
            return printed
        if time.monotonic() > deadline:
            raise AssertionError(f"{block}: {step.command}\npromised:\n{step.output}\nprinted:\n{printed}")
        time.sleep(0.1)


class CommandFailed(Exception):
    """A command of a document ended with an error."""


@dataclass(slots=True)
class _Shell:
    """Runs commands one by one in new shells, and takes variables and folder from each to the next."""

    cwd: Path
    env: Mapping[str, str]

    def run(self, command: str) -> str:
        marker = "==== state of the shell ===="
        script = f"set -euo pipefail\n{command}\necho\necho '{marker}'\npwd\nenv -0"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.cwd,
            env=dict(self.env),
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode:
            raise CommandFailed(f"{command}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
        printed, _, state = done.stdout.rpartition(f"\n{marker}\n")
        folder, _, variables = state.partition("\n")
        self.cwd = Path(folder)
        self.env = dict(each.split("=", 1) for each in variables.split("\0") if "=" in each)
        return printed

    @contextmanager
    def kept_running(self, block: Block) -> Iterator[None]:
        """Start the block's command, and check at the end that it still runs and then ends in order."""
        with TemporaryFile("w+") as log:
            command = ["bash", "-c", f"exec {block.code}"]
            process = subprocess.Popen(command, cwd=self.cwd, env=dict(self.env), stdout=log, stderr=log)
            try:
                yield
                assert process.poll() is None, f"{block} ended with {process.returncode}"
                process.terminate()
                assert process.wait(30) == 0, f"{block} ended with {process.returncode} after SIGTERM"
            except BaseException as error:
                log.seek(0)
                error.add_note(f"{block} printed:\n{log.read()[-4000:]}")
                raise
            finally:
                process.kill()
                process.wait()


def same(promised: str, printed: str) -> bool:
    """Return True if both say the same in the same columns, apart from what changes from run to run."""
    return _lasting(promised) == _lasting(printed)


def _lasting(text: str) -> list[list[str]]:
    for pattern, name in CHANGING:
        text = pattern.sub(name, text)
    return [line.split() for line in text.strip().splitlines()]
