"""A function as a task type: its arguments as a JSON object by name, its result as JSON, both checked by the
annotations. Clients write arguments and read results with it, runners read arguments and write results. So it
is with each value that a generator function yields.
"""

import inspect
from collections import abc
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from gpu_orchestrator.api import plain_errors, plain_json

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


_ITERATORS = (abc.Iterator, abc.Iterable, abc.AsyncIterator, abc.AsyncIterable, abc.AsyncGenerator)


class Unfit(TypeError):
    """Arguments, a result or a value do not fit the function."""


class Kinds(NamedTuple):
    """What a function yields and what it returns, by its annotations."""

    yields: Any
    returns: Any


class Definition:
    """A function and the name of its task type. Annotations are read when they are first needed: a module may
    name types that it defines further down."""

    def __init__(self, function: Callable[..., Any], name: str = "") -> None:
        self.function = function
        self.module, self.qualname = function.__module__, function.__qualname__
        self.name = name or f"{self.module}.{self.qualname}"
        self.is_async = inspect.iscoroutinefunction(function)
        self.is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        self._signature = inspect.signature(function)
        _check(function, self.name, self._signature)

    @property
    def target(self) -> str:
        """Return `module:function`, where a worker finds it."""
        return f"{self.module}:{self.qualname}"

    def write_arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], hook: plain_json.Hook | None = None
    ) -> msgspec.Raw:
        """Return the arguments as the parameters of a task; raise `Unfit`. With a `hook` for what stands for
        other values, the caller checks them, if nothing does."""
        if self.name.startswith(("__main__.", "__mp_main__.")):
            raise Unfit(
                f"{self.qualname} is defined in the program that was started, which no worker can import; "
                "move it to a module, or give the task a name: @task(name=...)"
            )
        try:
            given = self._signature.bind(*args, **kwargs).arguments
            written = plain_json.encode(given, hook)
        except (TypeError, plain_json.NotJson) as error:
            raise Unfit(f"{self.name}: {error}") from error
        if hook is None:
            self._read(written)
        return msgspec.Raw(written)

    def read_arguments(self, parameters: bytes | msgspec.Raw) -> dict[str, Any]:
        """Return the arguments by name; raise `Unfit`."""
        read = self._read(bytes(parameters))
        return {name: value for name in self._parameters if (value := getattr(read, name)) is not UNSET}

    def write_result(self, result: Any) -> msgspec.Raw:
        """Return the result as JSON; raise `Unfit` if it is not what the function says it returns."""
        try:
            written = plain_json.encode(result)
        except plain_json.NotJson as error:
            raise Unfit(f"{self.name} returned what JSON cannot carry: {error}") from error
        self.decode_result(written)
        return msgspec.Raw(written)

    def decode_result(self, result: bytes) -> Any:
        try:
            return self._results.decode(result)
        except msgspec.ValidationError as error:
            why = plain_errors.plain(error, result, self._kinds.returns, whole="the result")
            raise Unfit(f"the result of {self.name} is not what it says it returns: {why}") from error

    def write_value(self, value: Any) -> msgspec.Raw:
        """Return a value that was yielded as JSON; raise `Unfit` if it is not what the function says."""
        try:
            written = plain_json.encode(value)
        except plain_json.NotJson as error:
            raise Unfit(f"{self.name} yielded what JSON cannot carry: {error}") from error
        self.decode_value(written)
        return msgspec.Raw(written)

    def decode_value(self, value: bytes | msgspec.Raw) -> Any:
        try:
            return self._values.decode(value)
        except msgspec.ValidationError as error:
            why = plain_errors.plain(error, bytes(value), self._kinds.yields, whole="the value")
            raise Unfit(f"a value of {self.name} is not what it says it yields: {why}") from error

    def _read(self, parameters: bytes) -> Any:
        try:
            return self._arguments.decode(parameters)
        except msgspec.ValidationError as error:
            why = plain_errors.plain(error, parameters, self._struct, whole="the arguments")
            raise Unfit(f"arguments of {self.name}: {why}") from error
        except msgspec.DecodeError as error:
            raise Unfit(f"arguments of {self.name} are not JSON: {error}") from error

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return get_type_hints(self.function, include_extras=True)
        except NameError as error:
            raise Unfit(
                f"an annotation of {self.name} cannot be read: {error}; import it in "
                f"{self.module}, also outside of TYPE_CHECKING"
            ) from error

    @property
    def _parameters(self) -> Sequence[str]:
        return tuple(self._signature.parameters)

    @cached_property
    def _struct(self) -> type[msgspec.Struct]:
        return msgspec.defstruct(
            "Arguments",
            [self._field(name, each) for name, each in self._signature.parameters.items()],
            forbid_unknown_fields=True,
            kw_only=True,
        )

    def _field(self, name: str, parameter: inspect.Parameter) -> tuple[str, Any] | tuple[str, Any, Any]:
        kind = self._hints.get(name, Any)
        if parameter.default is inspect.Parameter.empty:
            return name, kind
        return name, kind | UnsetType if kind is not Any else Any, UNSET

    @cached_property
    def _arguments(self) -> "msgspec.json.Decoder[Any]":
        return self._decoder(self._struct)

    @cached_property
    def _kinds(self) -> Kinds:
        said = self._hints.get("return", Any)
        if not self.is_generator:
            return Kinds(Any, said)
        if said is Any:
            return Kinds(Any, Any)
        origin, inside = get_origin(said) or said, get_args(said)
        yields = inside[0] if inside else Any
        if origin is abc.Generator:
            return Kinds(yields, inside[2] if len(inside) > 2 else Any)
        if origin in _ITERATORS:
            return Kinds(yields, Any)
        raise Unfit(
            f"{self.name} yields values and says that it returns {said}; annotate it with "
            "Iterator[...], or with Generator[..., None, ...] if it returns something after them"
        )

    @cached_property
    def _results(self) -> "msgspec.json.Decoder[Any]":
        return self._decoder(self._kinds.returns)

    @cached_property
    def _values(self) -> "msgspec.json.Decoder[Any]":
        return self._decoder(self._kinds.yields)

    def _decoder(self, kind: Any) -> "msgspec.json.Decoder[Any]":
        try:
            return msgspec.json.Decoder(kind)
        except TypeError as error:
            raise Unfit(f"the annotations of {self.name} cannot be checked: {error}") from error


def _check(function: Callable[..., Any], name: str, signature: inspect.Signature) -> None:
    """Refuse at once what cannot become a task."""
    if not function.__qualname__.isidentifier():
        raise TypeError(
            f"{name} is not a function of a module, so that no worker can import it; move it there"
        )
    for each in signature.parameters.values():
        if each.kind not in _BY_NAME:
            raise TypeError(
                f"{name} takes {each}; arguments of a task are sent by name, so give it plain parameters"
            )
