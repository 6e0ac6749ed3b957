"""Records which tests failed or never ran, and names those that pass when they run again.

`.ci/run` uses it: a test that fails once and then passes alone is printed as flaky and does not fail the run.
docs/log.md lists each such name with its cause; the test is fixed or deleted in the same week.
"""

from collections.abc import Iterable
from pathlib import Path

import pytest


class Recorder:
    """Writes the names of tests that failed, and of those that a crashed process left behind, into a folder.

    Args:
        folder: gets `failed` (names are added) and `not-run` (replaced), one name a line.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.collected: dict[str, None] = {}
        self.done: set[str] = set()
        self.failed: dict[str, None] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected.update(dict.fromkeys(item.nodeid for item in session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self.collected.update(dict.fromkeys(ids))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.done.add(report.nodeid)
        if report.failed:
            self.failed[report.nodeid] = None

    def pytest_sessionfinish(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "failed").open("a") as file:
            file.writelines(f"{name}\n" for name in self.failed)
        (self.folder / "not-run").write_text("".join(f"{name}\n" for name in self.collected if name not in self.done))


class SecondRun:
    """Prints `flaky: NAME` for each test that passes now, and fails the run where one does not.

    A test that skips itself the second time has not passed: pytest alone would call that a success.
    """

    def __init__(self) -> None:
        self.selected: list[str] = []
        self.passed: set[str] = set()
        self.failed: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.selected = [item.nodeid for item in session.items]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def flaky(self) -> Iterable[str]:
        """Names of the tests that passed, in order."""
        return (name for name in self.selected if name in self.passed - self.failed)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == 0 and set(self.flaky()) != set(self.selected):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name in self.flaky():
            terminalreporter.write_line(f"flaky: {name}")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("flaky tests")
    group.addoption("--record", type=Path, metavar="DIR", help="write the names of failed and of unrun tests there")
    group.addoption("--second-run", action="store_true", help="name the tests that pass as flaky")


def pytest_configure(config: pytest.Config) -> None:
    """Take part where an option asks for it, but never in the processes that xdist starts."""
    if hasattr(config, "workerinput"):
        return
    if folder := config.getoption("--record"):
        config.pluginmanager.register(Recorder(folder.absolute()))
    if config.getoption("--second-run"):
        config.pluginmanager.register(SecondRun())
