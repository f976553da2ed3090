"""Every command in these documents is run by a test, or says why none can."""

import re

import pytest

from tests.support import documents
from tests.support.documents import Block, Step
from tests.support.paths import ROOT

DOCUMENTS = (
    "CONTRIBUTING.md",
    "README.md",
    *(
        str(each.relative_to(ROOT))
        for each in sorted((ROOT / "docs").glob("**/*.md"))
        if each.parent.name != "decisions"
    ),
)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_is_run_or_says_why_not(document: str) -> None:
    unmarked = [str(block) for block in documents.blocks(document) if not (block.test or block.reason)]
    assert not unmarked, f"write `<!-- run by … -->` or `<!-- not run: … -->` before: {', '.join(unmarked)}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_tests_named_in_a_document_run_its_blocks(document: str) -> None:
    for name in {block.test for block in documents.blocks(document)} - {""}:
        assert document in (ROOT / name).read_text(), f"{name} does not run the blocks of {document}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_tests_named_in_a_reason_exist(document: str) -> None:
    reasons = " ".join(block.reason for block in documents.blocks(document))
    missing = [name for name in re.findall(r"tests/[\w/]+(?:\.py)?", reasons) if not (ROOT / name).exists()]
    assert not missing


CONSOLE = """\
$ kubectl get gpuw \\
    my-model
NAME       AGE
my-model   4s
$ cat <<'END'
a: 1
END
a: 1
$ true
"""


def test_console_block_is_split_into_commands_and_outputs() -> None:
    steps = Block(ROOT / "README.md", 1, "console", CONSOLE).steps
    assert steps == [
        Step("kubectl get gpuw \\\n    my-model", "NAME       AGE\nmy-model   4s"),
        Step("cat <<'END'\na: 1\nEND", "a: 1"),
        Step("true"),
    ]


@pytest.mark.parametrize(
    ("promised", "printed", "same"),
    [
        pytest.param("NAME  AGE\na     4s", "NAME     AGE\na        2m15s\n", True, id="width and age"),
        pytest.param("on gpu-node-0", "on gpu-node-7", True, id="another of equal nodes"),
        pytest.param("on gpu-node-0", "on cheap-node-0", False, id="another kind of node"),
        pytest.param("a  Running", "a  Pending", False, id="another state"),
        pytest.param("a\nb", "a", False, id="a line is missing"),
    ],
)
def test_outputs_are_compared_without_what_changes(promised: str, printed: str, same: bool) -> None:
    assert documents.same(promised, printed) is same
