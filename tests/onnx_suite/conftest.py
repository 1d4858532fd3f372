"""The report of the suite, its caches, and exit status 1 where a figure is too low.

`--onnx-figures` (as `make onnx` has it) demands the figures; without it a part of the suite can be
run. `--onnx-failures FILE` writes what failed, by operator. `--onnx-sample N --onnx-seed S` runs N
of all cases, some of every operator; what the figures must be is then said of a sample.
"""

from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.onnx_suite.cases import SuiteCase
from tests.onnx_suite.figures import PROPERTY, Figures, Result, failures_by_operator
from tests.onnx_suite.out_of_scope import traits_of
from tests.onnx_suite.sample import sampled
from tests.scheduler.onnx_import.onnx_cases.case import Case
from tests.session_cache import SESSION

BUILD = Path(__file__).parent.parent.parent / "build"
MESSAGE = "onnx-suite-message"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--onnx-figures", action="store_true", help="fail where a figure is too low")
    parser.addoption("--onnx-failures", metavar="FILE", help="write failures by operator")
    parser.addoption("--onnx-sample", metavar="N", type=int, help="run N cases of all operators")
    parser.addoption("--onnx-seed", metavar="S", type=int, default=0, help="which N; 0 by default")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a sample of the cases, and the tests that are about no single one."""
    count = config.getoption("--onnx-sample")
    if count is None:
        return
    drawn = [(item, operators) for item in items if (operators := operators_of(item))]
    kept = sampled(drawn, count, config.getoption("--onnx-seed"))
    left_out = {item for item, _ in drawn} - set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def operators_of(item: pytest.Item) -> frozenset[str]:
    """Return the operators of a test's case; none where it has no case."""
    call = getattr(item, "callspec", None)
    case = None if call is None else call.params.get("case")
    if isinstance(case, SuiteCase):
        return traits_of(case.model()).operators
    return frozenset({case.op}) if isinstance(case, Case) else frozenset()


def pytest_configure(config: pytest.Config) -> None:
    # One for all workers and runs: many kernels are the same.
    SESSION.prefer(BUILD / "onnx-suite-cache")
    config.pluginmanager.register(Report(config), "onnx-suite-report")


@pytest.fixture(scope="session", autouse=True)
def no_tuned_table() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("TUNED", "0")
    yield
    patch.undo()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None:
        text = " ".join(str(call.excinfo.value).split())
        report.user_properties.append((MESSAGE, f"{call.excinfo.typename}: {text}"[:300]))
    return report


class Report:
    """Gathers results in the process that reports, and says at the end what they amount to."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.results: list[Result] = []

    @property
    def figures(self) -> Figures:
        count = self.config.getoption("--onnx-sample")
        sample = (
            "" if count is None else f"{count} cases, seed {self.config.getoption('--onnx-seed')}"
        )
        return Figures(tuple(self.results), sample)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the result of a test; it came with the report, perhaps from a worker."""
        known = dict(report.user_properties)
        data = known.get(PROPERTY)
        if report.when != "call" or not isinstance(data, dict):
            return
        name = report.nodeid.partition("[")[2].removesuffix("]")
        message = str(known.get(MESSAGE, ""))
        found = Result.from_data(data)
        self.results.append(replace(found, outcome=report.outcome, name=name, message=message))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that passed but for its figures."""
        wanted = self.config.getoption("--onnx-figures")
        if wanted and self.results and self.figures.problems() and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the figures; write the failures where that was asked for."""
        if not self.results:
            return
        path = self.config.getoption("--onnx-failures")
        if path:
            lines = failures_by_operator(self.figures.failed)
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
        terminalreporter.section("ONNX's test suite")
        for line in self.figures.lines():
            terminalreporter.write_line(line)
        if self.config.getoption("--onnx-figures"):
            for problem in self.figures.problems():
                terminalreporter.write_line(f"too low: {problem}", red=True)
