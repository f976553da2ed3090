"""Write the reference of the Python client from its signatures and docstrings: `make client-docs`.

The source is read as text, so what is shown is what is written there: overloads, names of types, and the text
below a field.
"""

# ruff: noqa: T201, TID251 - a script, outside the pure packages

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/gpu_orchestrator"
GROUPS = (
    ("Tasks", "client/functions.py", ("task", "TaskFunction", "StreamFunction")),
    ("The blocking client", "client/blocking.py", ("Client", "Handle", "StreamHandle")),
    ("The asynchronous client", "client/awaiting.py", ("AsyncClient", "AsyncHandle", "AsyncStreamHandle")),
    ("Schedules", "client/scheduling.py", ("Schedules", "AsyncSchedules")),
    ("What schedules are made of", "client/schedules.py", ("ScheduleInfo",)),
    ("Values", "client/tasks.py", ("Options", "Gang", "Cron", "Call", "TaskInfo", "Explanation", "Event")),
    ("Files", "api/files.py", ("File",)),
    ("Tests without a server", "testing.py", ("local",)),
    ("Inside a task", "apps/worker/task.py", ("Temporary", "SoftLimitReached", "Cancelled")),
)
MADE_BY_USERS = ("Client", "AsyncClient", "Call")
"""Classes whose constructor is shown. The others are made by the client."""
ERRORS = "client/errors.py"
HEAD = """\
# Python client

Written by `make client-docs` from the signatures and docstrings in `src/gpu_orchestrator/client`; changes
belong there. The [tutorial](../tutorials/python.md) shows it at work. `gpu_orchestrator` itself exports
`task`, `Client`, `AsyncClient` and `Call`; all else is imported from `gpu_orchestrator.client`, unless the
heading names another module.
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """One source file: what it defines at its top, by name, in order."""

    path: str
    text: str
    defined: dict[str, list[ast.stmt]]


def read(path: str) -> Module:
    text = (PACKAGE / path).read_text()
    defined: dict[str, list[ast.stmt]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | Function):
            defined.setdefault(node.name, []).append(node)
    return Module(path, text, defined)


def markdown() -> str:
    return "\n".join([HEAD, *_groups(), *_errors()]).rstrip() + "\n"


def _groups() -> Iterator[str]:
    for title, path, names in GROUPS:
        module = read(path)
        dotted = path.removesuffix(".py").replace("/", ".")
        home = "" if dotted.startswith("client") else f" (`gpu_orchestrator.{dotted}`)"
        yield f"## {title}{home}\n"
        for name in names:
            if name not in module.defined:
                sys.exit(f"{path} has no {name} any more; bring GROUPS in {__file__} up to date")
            yield from _described(name, module.defined[name])


def _errors() -> Iterator[str]:
    module = read(ERRORS)
    tree = ast.get_docstring(ast.parse(module.text)) or ""
    yield "## Errors\n"
    yield f"```text\n{tree.partition(chr(10))[2].strip()}\n```\n"
    for name, nodes in module.defined.items():
        yield from _described(name, nodes)


def _described(name: str, nodes: list[ast.stmt]) -> Iterator[str]:
    if isinstance(nodes[-1], ast.ClassDef):
        yield from _class(name, nodes[-1])
    else:
        yield from _functions(name, [node for node in nodes if isinstance(node, Function)])


def _class(name: str, node: ast.ClassDef) -> Iterator[str]:
    yield f"### `{name}`\n"
    methods: dict[str, list[Function]] = {}
    for each in node.body:
        if isinstance(each, Function) and (not each.name.startswith("_") or each.name == "__init__"):
            methods.setdefault(each.name, []).append(each)
    made = methods.pop("__init__", None)
    if made and name in MADE_BY_USERS:
        yield _code(_shown(made, name))
    yield from _text(node)
    if rows := list(_fields(node)):
        yield "\n".join(["| field | default | |", "|---|---|---|", *rows]) + "\n"
    for method, written in methods.items():
        if ast.get_docstring(written[-1]):
            yield from _functions(f"{name}.{method}", written, level=4)


def _functions(name: str, written: list[Function], level: int = 3) -> Iterator[str]:
    yield f"{'#' * level} `{name}`\n"
    yield _code(_shown(written, name.rpartition(".")[2]))
    yield from _text(written[-1])


def _shown(written: list[Function], name: str) -> list[str]:
    """Return the overloads, or the one signature if there are none."""
    overloads = [each for each in written if any("overload" in ast.unparse(d) for d in each.decorator_list)]
    return [_signature(each, name) for each in (overloads or written[-1:])]


def _signature(function: Function, name: str) -> str:
    start = f"await {name}" if isinstance(function, ast.AsyncFunctionDef) else name
    arguments = list(_arguments(function.args))
    one = f"{start}({', '.join(arguments)})"
    if len(one) > 90:
        one = "\n    ".join([f"{start}(", *(f"{each}," for each in arguments)]) + "\n)"
    is_made = function.name == "__init__" or function.returns is None
    return one if is_made else f"{one} -> {_plain(function.returns)}"


def _arguments(given: ast.arguments) -> Iterator[str]:
    """Yield the arguments as they are written in a call, without `self`."""
    first = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(first) - len(given.defaults)), *given.defaults]
    for number, (each, default) in enumerate(zip(first, defaults, strict=True)):
        if each.arg != "self":
            yield _argument(each, default)
        if number + 1 == len(given.posonlyargs) and given.posonlyargs[-1].arg != "self":
            yield "/"
    if given.vararg:
        yield f"*{_argument(given.vararg, None)}"
    elif given.kwonlyargs:
        yield "*"
    yield from map(_argument, given.kwonlyargs, given.kw_defaults)
    if given.kwarg:
        yield f"**{_argument(given.kwarg, None)}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {_plain(argument.annotation)}" if argument.annotation else ""
    return f"{argument.arg}{kind}" + (f" = {ast.unparse(default)}" if default else "").replace("'", '"')


def _plain(annotation: ast.expr | None) -> str:
    """Return a type as it is written, without the quotes of one that is defined later."""
    return ast.unparse(annotation).strip("'\"") if annotation else ""


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """Yield a row for each annotated field, with the text that stands below it."""
    for each, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        if each.target.id.startswith("_"):
            continue
        text = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = " ".join(str(after.value.value).split())
        is_simple = each.value is not None and not isinstance(each.value, ast.Call)
        default = f"`{ast.unparse(each.value)}`" if is_simple and each.value else ""
        kind = ast.unparse(each.annotation).replace("|", "\\|")
        yield f"| `{each.target.id}`: `{kind}` | {default} | {text} |"


def _text(node: ast.ClassDef | Function) -> Iterator[str]:
    if text := ast.get_docstring(node):
        yield text + "\n"


def _code(lines: list[str]) -> str:
    return "\n".join(["```python", *lines, "```\n"])


def main(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(markdown())
    print(path)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("name a file: python -m scripts.client_docs docs/reference/python.md")
    main(Path(sys.argv[1]))
