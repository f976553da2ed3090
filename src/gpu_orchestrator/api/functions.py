"""A function as a task type: its arguments as a JSON object by name, its result as JSON, both checked by the
annotations. Clients write arguments and read results with it, runners read arguments and write results.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from gpu_orchestrator.api import plain_errors, plain_json

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Unfit(TypeError):
    """Arguments or a result do not fit the function."""


class Definition:
    """A function and the name of its task type. Annotations are read when they are first needed: a module may
    name types that it defines further down."""

    def __init__(self, function: Callable[..., Any], name: str = "") -> None:
        self.function = function
        self.module, self.qualname = function.__module__, function.__qualname__
        self.name = name or f"{self.module}.{self.qualname}"
        self.is_async = inspect.iscoroutinefunction(function)
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
        if self.name.startswith("__main__."):
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
            why = plain_errors.plain(error, result, self._returns, whole="the result")
            raise Unfit(f"the result of {self.name} is not what it says it returns: {why}") from error

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
    def _returns(self) -> Any:
        return self._hints.get("return", Any)

    @cached_property
    def _results(self) -> "msgspec.json.Decoder[Any]":
        return self._decoder(self._returns)

    def _decoder(self, kind: Any) -> "msgspec.json.Decoder[Any]":
        try:
            return msgspec.json.Decoder(kind)
        except TypeError as error:
            raise Unfit(f"the annotations of {self.name} cannot be checked: {error}") from error


def _check(function: Callable[..., Any], name: str, signature: inspect.Signature) -> None:
    """Refuse at once what cannot become a task."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{name} yields values, and a task has one result; "
            "return a list, and print what is to be seen earlier"
        )
    if not function.__qualname__.isidentifier():
        raise TypeError(
            f"{name} is not a function of a module, so that no worker can import it; move it there"
        )
    for each in signature.parameters.values():
        if each.kind not in _BY_NAME:
            raise TypeError(
                f"{name} takes {each}; arguments of a task are sent by name, so give it plain parameters"
            )
