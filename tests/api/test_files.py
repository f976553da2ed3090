"""Files in parameters: a task opens what the worker fetched, wherever its submitter would like it to look."""

import json

import pytest

from gpu_orchestrator.api import files

OWN = "file-" + "0" * 32
PATHS = {OWN: "/fetched/it"}


@pytest.mark.parametrize(
    ("given", "path"),
    [
        pytest.param('{"$file": "OWN"}', "/fetched/it", id="plain"),
        pytest.param('{"$file": "OWN", "path": "/etc/shadow"}', "/fetched/it", id="path behind it"),
        pytest.param('{"path": "/etc/shadow", "$file": "OWN"}', "/fetched/it", id="path before it"),
        pytest.param('{"$file": "OWN", "p\\u0061th": "/etc/shadow"}', "/fetched/it", id="path escaped"),
        pytest.param('{"$file": "file-1", "path": "/etc/shadow"}', "", id="no file"),
        pytest.param('{"$file": 1, "path": "/etc/shadow"}', "", id="no text"),
        pytest.param('{"\\u0024file": "x", "path": "/etc/shadow"}', "", id="escaped"),
        pytest.param('{"$f\\u0069\\u006Ce" : "x", "path": "/etc/shadow"}', "", id="half escaped"),
        pytest.param('{"$file": "x", "$file": "OWN", "path": "/etc/shadow"}', "/fetched/it", id="twice"),
    ],
)
def test_path_of_a_file_is_the_workers_alone(given: str, path: str) -> None:
    parameters = f'{{"deep": [{{"text": {given.replace("OWN", OWN)}}}]}}'.encode()
    found = json.loads(files.with_paths(parameters, PATHS))
    assert found["deep"][0]["text"]["path"] == path


def test_parameters_without_files_stay_as_they_were_written() -> None:
    written = b'{"text": "{\\"$file\\": 1}", "path": "/data", "n": 1.50, "b": 123456789012345678901234567890}'
    assert files.with_paths(written, {}) == written


def test_numbers_beside_a_file_keep_their_value() -> None:
    given = b'{"a": {"$file": "%b"}, "n": 123456789012345678901234567890, "f": 0.1}' % OWN.encode()
    assert json.loads(files.with_paths(given, PATHS)) == {
        "a": {"$file": OWN, "path": "/fetched/it"},
        "n": 123456789012345678901234567890,
        "f": 0.1,
    }
