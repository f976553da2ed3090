"""How deep JSON is: brackets count, those in strings do not."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_orchestrator.api.nesting import DEEPEST, is_too_deep

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


def _depth(value: object) -> int:
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0
