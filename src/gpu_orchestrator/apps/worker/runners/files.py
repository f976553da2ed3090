"""Files that a task takes and leaves, in the runner: the agent fetches and sends them, because it has the
server's address and token. The task waits for its answers.
"""

import os
import threading
from collections.abc import Callable

from gpu_orchestrator.api import files
from gpu_orchestrator.apps.worker import frames
from gpu_orchestrator.apps.worker.task import Task, Temporary


class FileMissing(LookupError):
    """A file that the task takes is no longer there, or one that it leaves cannot be kept."""


class Files:
    """Asks the agent, one thing at a time for each thread of the task."""

    def __init__(self, send: Callable[[frames.Wants | frames.Leaves], None]) -> None:
        self._send = send
        self._task: Task | None = None
        self._answers: dict[int, frames.Got] = {}
        self._number = 0
        self._changed = threading.Condition()

    def begin(self, task: Task) -> None:
        """Fetch the files that the parameters name, and let the task leave some."""
        self._task = task
        files.keep_with(self._keep)
        named = files.named_in(task.raw_parameters)
        paths = {name: self._fetched(task, name) for name in named}
        task.raw_parameters = files.with_paths(task.raw_parameters, paths)

    def _fetched(self, task: Task, name: str) -> str:
        return self._ask(lambda at: frames.Wants(*task.key, at, name)).path

    def got(self, answer: frames.Got) -> None:
        with self._changed:
            if self._task is not None and self._task.key == (answer.task, answer.attempt):
                self._answers[answer.number] = answer
            self._changed.notify_all()

    def wake(self) -> None:
        """Let a task that waits look whether it was cancelled."""
        with self._changed:
            self._changed.notify_all()

    def end(self) -> None:
        if self._task is not None:
            files.keep_with(None)
            self._task = None
            self._answers.clear()

    def _keep(self, path: str, name: str) -> files.File:
        task = self._task
        if task is None:
            raise RuntimeError("the task has ended and can leave no more files")
        folder = self._ask(lambda at: frames.Wants(*task.key, at)).path
        kept = self._ask(lambda at: _moved(frames.Leaves(*task.key, at, name), path, folder))
        return files.File(kept.file, name, kept.size)

    def _ask(self, frame_of: Callable[[int], frames.Wants | frames.Leaves]) -> frames.Got:
        task = self._task
        if task is None:
            raise RuntimeError("the task has ended")
        task.check()
        with self._changed:
            self._number += 1
            number = self._number
        self._send(frame_of(number))
        with self._changed:
            while number not in self._answers and not task.is_cancelled:
                self._changed.wait()
            answer = self._answers.pop(number, None)
        task.check()
        if answer is None or answer.error:
            error = answer.error if answer else "the task was cancelled"
            raise FileMissing(error) if answer is None or answer.lasting else Temporary(error)
        return answer


def _moved(frame: frames.Leaves, path: str, folder: str) -> frames.Leaves:
    import shutil  # few tasks leave files, and every runner would load it

    shutil.move(path, os.path.join(folder, str(frame.number)))
    return frame
