"""(pytest plugin) A test of real processes that fails is tried once more, and then called flaky.

Real processes on a loaded machine are late now and then, and one such test in hundreds says nothing
about a change. But it is told, with what it said, and more than a few in one run fail the run.
Only with `--retry-processes`, and only tests with the marker `process`.
"""

from collections.abc import Generator
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

OPTION = "--retry-processes"
MAX_FLAKY = 3
_FIRST = pytest.StashKey[str]()
"""What the first try said."""
_PROPERTY = "failed at first"


class FlakyTests:
    """Collects, where the reports of all test processes arrive."""

    def __init__(self) -> None:
        self._retried: dict[str, str] = {}
        self._failed: set[str] = set()

    @property
    def found(self) -> dict[str, str]:
        """By test: what it said before it passed."""
        return {test: said for test, said in self._retried.items() if test not in self._failed}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        said = dict(report.user_properties).get(_PROPERTY)
        if said is not None:
            self._retried[report.nodeid] = str(said)
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if len(self.found) > MAX_FLAKY and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for test, said in self._retried.items():
            if test in self._failed:
                terminalreporter.line(f"FAILED TWICE {test}: at first {_headline(said)}")
        if not self.found:
            return
        terminalreporter.section("flaky: passed at the second try")
        for test, said in self.found.items():
            terminalreporter.line(said)
            terminalreporter.line(f"FLAKY {test}: {_headline(said)}")
        if len(self.found) > MAX_FLAKY:
            terminalreporter.line(f"{len(self.found)} flaky tests, at most {MAX_FLAKY} may be")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, action="store_true", help="try failed tests of processes once more")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(OPTION) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FlakyTests())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    is_real = item.get_closest_marker("process") is not None
    if not item.config.getoption(OPTION) or not is_real or _FIRST in item.stash:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    failed = [report for report in reports if report.failed]
    if not failed:
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True
    item.stash[_FIRST] = failed[0].longreprtext
    # Fixtures that others share may have failed, or be broken: the second try gets new ones.
    setup_state = item.session._setupstate
    pytest.CallInfo.from_call(lambda: setup_state.teardown_exact(None), when="teardown")
    item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)  # with its own time limit
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if _FIRST in item.stash:
        report.user_properties.append((_PROPERTY, item.stash[_FIRST]))
    return report


def _headline(text: str) -> str:
    lines = text.strip().splitlines()
    marked = [line for line in lines if line.startswith("E  ")]
    return (marked or lines or ["it failed"])[0].removeprefix("E").strip()[:200]
