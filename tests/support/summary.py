"""Print at the end of a run, besides passed and failed: the figures, and the files that took the time.

Both travel in the reports of the tests, so they also arrive from the workers of `pytest -n`.
"""

from collections import defaultdict

import pytest

FIGURE = "figure"
SLOWEST_FILES = 25


class Summary:
    def __init__(self) -> None:
        self.figures: list[str] = []
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file, _, test = report.nodeid.partition("::")
        self.seconds[file] += report.duration
        if report.when == "teardown":  # the last report of a test carries all it recorded
            self.figures += [f"{test}: {told}" for name, told in report.user_properties if name == FIGURE]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.figures:
            terminalreporter.section("figures (for orientation: this machine, this load)")
            for sentence in self.figures:
                terminalreporter.write_line(sentence)
        if sum(self.seconds.values()) > 60:
            terminalreporter.section("seconds per file")
            for file in sorted(self.seconds, key=self.seconds.__getitem__, reverse=True)[:SLOWEST_FILES]:
                terminalreporter.write_line(f"{self.seconds[file]:7.1f} {file}")
