"""Check at start that registered functions can be imported, and find the tasks of modules, in a process of
its own: the agent must never load a user's module, which may take devices. `gpu-orchestrator worker` calls
`check` and `tasks_of`.

    python -P -m gpu_orchestrator.apps.worker.handlers.importable module:function module …
"""

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from gpu_orchestrator.adapters import keeper
from gpu_orchestrator.adapters.process_rights import User
from gpu_orchestrator.adapters.settings import BadSettings
from gpu_orchestrator.api.functions import Definition
from gpu_orchestrator.api.importing import importing
from gpu_orchestrator.apps.worker import environment
from gpu_orchestrator.apps.worker.handlers import find

LONGEST_S = 120.0
OURS = Path(__file__).parents[3]
CLASS = "()"
"""Ends a target that is a class which loads a model."""
RUNNER = "gpu_orchestrator.apps.worker.runners.runner:main"
NO_DEVICES = {
    "CUDA_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "GPU_ORCHESTRATOR_VISIBLE_GPUS": "",
}
log = structlog.get_logger()


def check(functions: Mapping[str, str], user: User | None = None) -> None:
    """Raise `BadSettings` for functions that do not exist. A module that fails otherwise, such as one that
    needs a device to be imported, is only warned of. `user` is who will call them, if it is another user."""
    if user is not None:
        _check_user(user)
    if not functions:
        return
    found = _look(list(functions.values()), user)
    wrong = []
    for name, target in functions.items():
        kind, why = found.get(target, ("unsure", "it was not imported within two minutes"))
        if kind == "missing":
            wrong.append(f"--function {name}={target} cannot be imported: {why}")
        elif kind == "unsure":
            log.warning("a function could not be checked", function=name, target=target, why=why)
    if wrong:
        advice = "install the module here, or start the worker in its folder"
        raise BadSettings("\n".join(f"{line}; {advice}" for line in wrong))


def check_models(models: Mapping[str, str], user: User | None = None) -> None:
    """Raise `BadSettings` for models whose class does not exist or lacks a method. As with functions, a
    module that fails otherwise is only warned of."""
    for name, target in models.items():
        module, _, attribute = target.partition(":")
        if not module or not attribute:
            raise BadSettings(f"--model {name}={target} does not name a class; write NAME=module:Class")
        if name in find.installed():
            raise BadSettings(
                f"--model {name}={target} has the name of another task type; give it another name"
            )
    found = _look([f"{target}{CLASS}" for target in models.values()], user) if models else {}
    for name, target in models.items():
        kind, why = found.get(f"{target}{CLASS}", ("unsure", "it was not imported within two minutes"))
        if kind == "missing":
            raise BadSettings(
                f"--model {name}={target} cannot be used: {why}; install the module here, or start the "
                "worker in its folder"
            )
        if kind == "unsure":
            log.warning("a model's class could not be checked", model=name, target=target, why=why)


def tasks_of(apps: Sequence[str], user: User | None = None) -> dict[str, str]:
    """Return `task type -> module:task` of every `@task` that these modules have, their own or imported;
    raise `BadSettings` for a module without."""
    found: dict[str, tuple[str, str]] = {}
    """By name: where this worker finds it, and where it is defined. Two modules may import the same task."""
    for app in apps:
        if app.endswith(".py") or not all(part.isidentifier() for part in app.split(".")):
            raise BadSettings(
                f"--app {app} is not the name of a module; write it as in an import, without .py and without "
                "the name of a task, such as --app my_tasks"
            )
    verdicts = _look(list(apps), user) if apps else {}
    for app in apps:
        kind, said = verdicts.get(app, ("unsure", "it was not imported within two minutes"))
        if kind != "ok":
            is_found = not said.startswith("ModuleNotFoundError")
            advice = "" if is_found else "; install the module here, or start the worker in its folder"
            raise BadSettings(f"--app {app} cannot be imported: {said}{advice}")
        tasks = {name: (path, home) for name, (path, home) in json.loads(said).items()}
        if not tasks:
            raise BadSettings(f"--app {app} has no task; decorate its functions with @gpu_orchestrator.task")
        taken = sorted(
            name
            for name, (_, home) in tasks.items()
            if name in find.installed() or (name in found and found[name][1] != home)
        )
        if taken:
            raise BadSettings(
                f"--app {app} has a task with the name of another task type, {taken[0]}; give it another name"
            )
        found |= tasks
    return {name: path for name, (path, _) in found.items()}


def _check_user(user: User) -> None:
    """Raise `BadSettings` if this user cannot load a runner."""
    try:
        kind, why = _look([RUNNER], user).get(RUNNER, ("unsure", "it takes too long"))
    except OSError as error:
        kind, why = "missing", str(error)
    if kind != "ok":
        raise BadSettings(
            f"--run-as {user.name}: that user cannot run {sys.executable} with this package ({why}); "
            "install it where every user may read it, such as /opt"
        )


def _look(targets: list[str], user: User | None) -> dict[str, tuple[str, str]]:
    """Return `ok`, `missing` or `unsure` for each target, and the reason."""
    try:
        done = _run(targets, user)
    except subprocess.TimeoutExpired:
        return {}
    for line in reversed(done.stdout.splitlines()):
        with suppress(ValueError, AttributeError, TypeError):
            return {target: (kind, why) for target, (kind, why) in json.loads(line).items()}
    why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return dict.fromkeys(targets, ("unsure", why))


def _run(targets: list[str], user: User | None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, keeper.SAFE_PATH, "-m", __name__, *targets],
        env=environment.without_secrets() | NO_DEVICES | (user.environment() if user else {}),
        user=user.uid if user else None,
        group=user.gid if user else None,
        extra_groups=user.groups if user else None,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )


def verdict(target: str) -> tuple[str, str]:
    """Import a target here, and return what came of it."""
    module, _, function = target.removesuffix(CLASS).partition(":")
    if not function:
        return _tasks(module)
    try:
        with importing(module):
            found = getattr(importlib.import_module(module), function)
    except (ImportError, SyntaxError) as error:
        return "missing", f"{type(error).__name__}: {error}"
    except AttributeError as error:
        loaded = sys.modules.get(module)
        if loaded is None:
            return "unsure", f"{type(error).__name__}: {error}"
        return "missing", f"{getattr(loaded, '__file__', module)} has no {function}"
    except BaseException as error:  # anything may happen in a user's module, also an exit
        return "unsure", f"{type(error).__name__}: {error}"
    if target.endswith(CLASS):
        lacks = [each for each in ("load", "run") if not callable(getattr(found, each, None))]
        return ("missing", f"{module}.{function} has no method {lacks[0]}") if lacks else ("ok", "")
    return ("ok", "") if callable(found) else ("missing", f"{module}.{function} is not a function")


def _tasks(name: str) -> tuple[str, str]:
    """Import a module, and return its tasks as JSON, or why there are none."""
    try:
        with importing(name):
            module = importlib.import_module(name)
    except BaseException as error:  # anything may happen in a user's module, also an exit
        return "missing", f"{type(error).__name__}: {error}{_line(error)}"
    tasks = {
        each.name: (f"{name}:{attribute}", each.target)
        for attribute, each in vars(module).items()
        if isinstance(each, Definition)
    }
    return "ok", json.dumps(tasks)


def _line(error: BaseException) -> str:
    """Return which line of the user's own files an error came from, if it does not say so itself."""
    if isinstance(error, ModuleNotFoundError | SyntaxError):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [
        each
        for each in frames
        if not each.filename.startswith("<") and OURS not in Path(each.filename).parents
    ]
    return f" ({Path(theirs[-1].filename).name}, line {theirs[-1].lineno})" if theirs else ""


def main() -> None:
    environment.add_current_folder()
    found = {target: verdict(target) for target in sys.argv[1:]}
    sys.stdout.write(f"\n{json.dumps(found)}\n")
    sys.stdout.flush()
    os._exit(0)  # threads that a module started must not keep this process


if __name__ == "__main__":
    main()
