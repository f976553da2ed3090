"""End processes with their owner: a mark in their environment, and a watchdog that looks for it."""

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

from controlplane import watchdog


class Guard:
    """When this process ends in any way, the watchdog kills all marked processes and removes `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        command = [sys.executable, "-S", "-E", watchdog.__file__, self.mark, str(folder)]
        # Without the mark of an outer guard, which would kill this watchdog too early.
        environment = {name: value for name, value in os.environ.items() if name != watchdog.MARK}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, start_new_session=True, cwd="/", env=environment
        )

    @property
    def environment(self) -> dict[str, str]:
        return {watchdog.MARK: self.mark}

    def end(self) -> None:
        """End all now. The watchdog always does the work first, so that every run tests it."""
        self._process.communicate()  # closes the pipe and waits
        watchdog.end_all(self.mark)
        shutil.rmtree(self.folder, ignore_errors=True)
