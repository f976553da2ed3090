"""How deep JSON is: brackets count, those in strings do not."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.api.nesting import DEEPEST, cut, is_too_deep, is_value_too_deep

WIDE = b"[" + b"[1]," * 1000 + b"{}]"


@pytest.mark.parametrize(
    ("text", "is_so"),
    [
        pytest.param(b"[" * DEEPEST + b"]" * DEEPEST, False, id="as deep as may be"),
        pytest.param(b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1), True, id="one deeper"),
        pytest.param(b'{"a":' * (DEEPEST + 1) + b"1" + b"}" * (DEEPEST + 1), True, id="objects"),
        pytest.param(WIDE, False, id="wide is not deep"),
        pytest.param(b'"' + b"[" * 1000 + b'"', False, id="in a string"),
        pytest.param(b'["\\"' + b"[" * 1000 + b'"]', False, id="after an escaped quote"),
        pytest.param(b'["\\\\",' + b"[" * 1000 + b"]" * 1000 + b"]", True, id="after an escaped backslash"),
        pytest.param(b'"' + b"[" * 1000 + b"\n" + b'"', False, id="over lines"),
    ],
)
def test_depth(text: bytes, is_so: bool) -> None:
    assert is_too_deep(text) is is_so


@given(st.recursive(st.text(), st.lists, max_leaves=5), st.integers(0, 2 * DEEPEST))
def test_depth_equals_number_of_wrappers(value: object, times: int) -> None:
    own = _depth(value)
    text = b"[" * times + msgspec.json.encode(value) + b"]" * times
    assert is_too_deep(text) is (times + own > DEEPEST)
    assert is_value_too_deep(_wrapped(value, times)) is (times + own > DEEPEST)


@given(
    st.recursive(st.text() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)),
    st.integers(0, 3),
)
def test_cut_replaces_exactly_what_is_deeper(value: object, deepest: int) -> None:
    found = msgspec.json.decode(cut(msgspec.json.encode(value), b'"mark"', deepest=deepest))
    assert found == _cut(value, deepest)


def test_what_no_decoder_reads_can_be_cut() -> None:
    text = b'{"a":' * 100_000 + b'"]}"' + b"}" * 100_000
    assert not is_too_deep(cut(text, b'"mark"'))
    assert cut(text, b'"mark"', deepest=2) == b'{"a":{"a":"mark"}}'


def _wrapped(value: object, times: int) -> object:
    for _ in range(times):
        value = [value]
    return value


def _cut(value: object, deepest: int) -> object:
    if isinstance(value, (list, dict)) and deepest == 0:
        return "mark"
    if isinstance(value, list):
        return [_cut(each, deepest - 1) for each in value]
    if isinstance(value, dict):
        return {name: _cut(each, deepest - 1) for name, each in value.items()}
    return value


def _depth(value: object) -> int:
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0
