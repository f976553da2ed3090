"""Parameters of a task as JSON, as pairs, from a file and from stdin."""

import io
from pathlib import Path
from typing import Any

import pytest

from gpu_orchestrator.cli import parameters


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ([], {}),
        (['{"a": 1}'], {"a": 1}),
        (['{"a": "b=c"}'], {"a": "b=c"}),
        (["[1, 2]"], [1, 2]),
        (["seconds=1.5", "name=x y", "on=true", "none=null", "list=[1]", "empty="], None),
        (["a=b=c"], {"a": "b=c"}),
        (["n=NaN"], {"n": "NaN"}),
    ],
)
def test_json_and_pairs(given: list[str], value: Any) -> None:
    pairs = {"seconds": 1.5, "name": "x y", "on": True, "none": None, "list": [1], "empty": ""}
    assert parameters.read(given) == (pairs if value is None else value)


def test_file_and_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p.json").write_text('{"a": "é"}', encoding="utf-8")
    assert parameters.read([f"@{tmp_path / 'p.json'}"]) == {"a": "é"}
    for word in ("-", "@-"):
        monkeypatch.setattr("sys.stdin", io.StringIO('{"b": 2}'))
        assert parameters.read([word]) == {"b": 2}


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (["{bad"], 1, "the parameters are not valid JSON: Expecting property name"),
        (["word"], 1, "write for example '{\"seconds\": 1}' or seconds=1"),
        (['{"a": NaN}'], 1, "NaN is not a number in JSON"),
        (["[" * 100_000], 1, "nested too deep"),
        (["a=1", "b"], 2, "b is not a pair; give pairs such as seconds=1, or JSON in one word"),
        (["a=1", '{"b": "c=d"}'], 2, "is not a pair"),
        (["@/none.json"], 1, "@/none.json cannot be read: no such file or directory; give a file with JSON"),
        (["@/proc/self/exe"], 1, "@/proc/self/exe cannot be read: it is not text"),
    ],
)
def test_mistakes_are_explained(
    given: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parameters.read(given)
    assert ended.value.code == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gpu-orchestrator: ")
    assert words in line


@pytest.mark.parametrize(("text", "seconds"), [("90", 90.0), ("0.5", 0.5), ("30m", 1800.0)])
def test_time_in_seconds_or_with_a_unit(text: str, seconds: float) -> None:
    assert parameters.seconds(text, "--timeout") == seconds
