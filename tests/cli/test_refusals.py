"""Refusals of the server in the words of the command line."""

import pytest

from gpu_orchestrator.cli.refusals import in_words
from gpu_orchestrator.cli.where import Place

PLACE = Place("https://gpu.example:8000", "k", key_found="API_KEY")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            "the body does not match the schema: Expected `int` <= 64 - at `$.resources.gpus`",
            "--gpus: give a whole number of at most 64",
        ),
        (
            "the body does not match the schema: Expected `float` > 0.0 - at `$.timeout`",
            "--timeout: give a number of more than 0",
        ),
        (
            "the body does not match the schema: Expected `str` of length <= 200 - at `$.idempotency_key`",
            "--idempotency-key: give text of at most 200 letters",
        ),
        (
            "the body does not match the schema: Invalid enum value 'x' - at `$.scopes[0]`",
            "--scope: Invalid enum value 'x'",
        ),
        (
            "the body does not match the schema: Object contains unknown field `foo` - at `$.limits`",
            "--limit: Object contains unknown field foo",
        ),
        ("resources.gpus is 99; give at most 64", "--gpus is 99; give at most 64"),
        ("scopes[0] is 'x'; known: read", "--scope is 'x'; known: read"),
        (
            "resources.gpu_memory: '10XB' is not an amount of memory",
            "--memory: '10XB' is not an amount of memory",
        ),
        ("limit=0: Input should be greater than or equal to 1", "--limit 0: give at least 1"),
        ("limit=99999: give at most 1000", "--limit 99999: give at most 1000"),
        ("something=else: is wrong", "something=else: is wrong"),
        ("task a is completed already", "task a is completed already"),
    ],
)
def test_field_is_named_as_its_option(message: str, words: str) -> None:
    assert in_words(422, message, PLACE) == words


def test_missing_key_says_how_to_get_one() -> None:
    words = in_words(401, "a key is needed; send the header Authorization: Bearer <key>", Place(PLACE.url))
    assert words == (
        "https://gpu.example:8000 asks for a key; get one from its operator, then run "
        "`gpu-orchestrator login https://gpu.example:8000`, or set API_KEY"
    )


def test_unknown_key_says_where_it_is_from() -> None:
    words = in_words(401, "this key is not known here; ask the operator for one", PLACE)
    assert "not known here" in words
    assert "the key is from API_KEY" in words


def test_route_that_an_older_server_lacks_is_explained() -> None:
    assert "older than this program" in in_words(404, "Not Found", PLACE)
