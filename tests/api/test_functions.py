"""Functions as task types: what may be one, and what its arguments and results may be."""

import math
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import pytest

from gpu_orchestrator.api.functions import Definition, Unfit

if TYPE_CHECKING:
    from decimal import Decimal


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@dataclass
class Point:
    x: int
    y: float = 0.5


def train(
    epochs: int,
    *,
    kind: Literal["sgd", "adam"] = "sgd",
    tags: list[str] | None = None,
    at: Point = Point(1),  # noqa: B008
) -> list[Point]:
    return [at] * epochs


def plain(a, b=None):  # type: ignore[no-untyped-def]
    return [a, b]


def bounded(size: Annotated[int, msgspec.Meta(ge=1)]) -> None:
    assert size


def later(at: "Later") -> "Later":
    return at


PATH: Any = PurePosixPath("p")


@dataclass
class Later:
    n: int


def hidden(amount: "Decimal") -> None: ...


def yields() -> Iterator[int]:
    yield 1


async def yields_later() -> AsyncIterator[int]:
    yield 1


def yields_and_returns() -> Generator[Point, None, str]:
    yield Point(1)
    return "done"


def yields_anything():  # type: ignore[no-untyped-def]
    yield 1


def yields_wrongly() -> list[int]:  # type: ignore[misc]
    yield 1


def any_number(*numbers: int) -> None: ...


def any_words(**words: int) -> None: ...


def only_by_place(a: int, /) -> None: ...


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "written", "read"),
    [
        pytest.param(train, (3,), {}, b'{"epochs":3}', {"epochs": 3}, id="defaults stay with the function"),
        pytest.param(
            train,
            (),
            {"epochs": 1, "at": Point(2), "tags": None, "kind": "adam"},
            b'{"epochs":1,"kind":"adam","tags":null,"at":{"x":2,"y":0.5}}',
            {"epochs": 1, "kind": "adam", "tags": None, "at": Point(2)},
            id="by name",
        ),
        pytest.param(
            plain, (1, {"x": [2]}), {}, b'{"a":1,"b":{"x":[2]}}', {"a": 1, "b": {"x": [2]}}, id="anything"
        ),
        pytest.param(
            later, (Later(1),), {}, b'{"at":{"n":1}}', {"at": Later(1)}, id="named before it is defined"
        ),
    ],
)
def test_arguments_are_sent_by_name(
    function: Callable[..., Any], args: Any, kwargs: Any, written: bytes, read: Any
) -> None:
    definition = Definition(function)
    parameters = definition.write_arguments(args, kwargs)
    assert bytes(parameters) == written
    assert definition.read_arguments(parameters) == read


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "words"),
    [
        pytest.param(train, ("three",), {}, "epochs is 'three'; give a whole number", id="wrong type"),
        pytest.param(train, (), {}, "missing a required argument: 'epochs'", id="missing"),
        pytest.param(train, (1, 2), {}, "too many positional arguments", id="too many"),
        pytest.param(train, (1,), {"rate": 2}, "unexpected keyword argument 'rate'", id="unknown"),
        pytest.param(train, (1,), {"kind": "x"}, "kind is 'x'; known: adam, sgd", id="not in the list"),
        pytest.param(train, (1,), {"at": {"x": "a"}}, r"at\.x is 'a'", id="inside"),
        pytest.param(bounded, (0,), {}, "size is 0; give at least 1", id="bound"),
        pytest.param(plain, (object(),), {}, "a is of class object; give numbers, ", id="not JSON"),
        pytest.param(
            plain,
            ({"x": [Later(PATH)]},),
            {},
            r"a\.x\[0\]\.n is of class PurePosixPath of pathlib; give",
            id="a path",
        ),
        pytest.param(plain, ({(1, 2): 3},), {}, "Only dicts with", id="a tuple as key"),
        pytest.param(plain, ("\ud800",), {}, "surrogates not allowed", id="half a character"),
        pytest.param(plain, (ENDLESS,), {}, "maximum recursion depth", id="contains itself"),
        pytest.param(plain, ({"x": [0, math.nan]},), {}, r"a\.x\[1\] is nan; give None", id="not a number"),
        pytest.param(plain, (-math.inf,), {}, "a is -inf", id="infinite"),
        pytest.param(hidden, (1,), {}, "'Decimal' is not defined; import it in", id="for type checkers only"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_they_are_sent(
    function: Callable[..., Any], args: Any, kwargs: Any, words: str
) -> None:
    with pytest.raises(Unfit, match=words):
        Definition(function).write_arguments(args, kwargs)


def test_parameters_of_another_client_are_checked_too() -> None:
    with pytest.raises(Unfit, match=r"arguments of tests\.api\.test_functions\.train: unknown field rate"):
        Definition(train).read_arguments(b'{"epochs": 1, "rate": 2}')
    with pytest.raises(Unfit, match="are not JSON"):
        Definition(train).read_arguments(b"{")


def test_result_is_checked_by_its_annotation() -> None:
    definition = Definition(train)
    assert definition.decode_result(bytes(definition.write_result([Point(1)]))) == [Point(1)]
    with pytest.raises(Unfit, match=r"the result of .*train is not what it says it returns: .*x.* is 'a'"):
        definition.write_result([{"x": "a"}])
    with pytest.raises(Unfit, match="returned what JSON cannot carry"):
        definition.write_result([object()])
    with pytest.raises(Unfit, match=r"JSON cannot carry: \[0\]\.y is nan"):
        definition.write_result([Point(1, math.nan)])
    with pytest.raises(Unfit, match="JSON cannot carry: it is inf"):
        Definition(plain).write_result(math.inf)
    assert bytes(Definition(plain).write_result({"any": None})) == b'{"any":null}'


@pytest.mark.parametrize("function", [yields, yields_later])
def test_yielded_values_are_checked_by_the_annotation(function: Callable[..., Any]) -> None:
    definition = Definition(function)
    assert definition.is_generator
    assert definition.decode_value(definition.write_value(5)) == 5
    assert bytes(definition.write_result("anything")) == b'"anything"'
    with pytest.raises(Unfit, match=r"a value of .*yields.* is not what it says it yields: the value is 'x'"):
        definition.write_value("x")
    with pytest.raises(Unfit, match="yielded what JSON cannot carry"):
        definition.write_value(object())


def test_generator_has_a_result_of_its_own() -> None:
    definition = Definition(yields_and_returns)
    assert definition.decode_value(definition.write_value(Point(2))) == Point(2)
    assert definition.decode_result(definition.write_result("done")) == "done"
    with pytest.raises(Unfit, match=r"the result of .* is not what it says"):
        definition.write_result(5)
    assert bytes(Definition(yields_anything).write_value({"any": 1})) == b'{"any":1}'
    with pytest.raises(Unfit, match=r"says that it returns list\[int\]; annotate it with Iterator"):
        Definition(yields_wrongly).write_value(1)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        pytest.param(
            any_number, r"takes \*numbers: int; arguments of a task are sent by name", id="any number"
        ),
        pytest.param(any_words, r"takes \*\*words: int", id="any words"),
        pytest.param(only_by_place, "takes a: int", id="only by place"),
        pytest.param(lambda: None, "is not a function of a module", id="lambda"),
        pytest.param(Definition.read_arguments, "is not a function of a module", id="method"),
    ],
)
def test_function_that_cannot_be_a_task_is_refused_at_once(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Definition(function)


def test_function_of_the_main_program_needs_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "__module__", "__main__")
    with pytest.raises(Unfit, match="which no worker can import; move it to a module"):
        Definition(bounded).write_arguments((1,), {})
    assert bytes(Definition(bounded, "my.bounded").write_arguments((1,), {})) == b'{"size":1}'
