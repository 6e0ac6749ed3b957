"""Measures the seconds of each folder of tests, and holds the settings for all tests."""

import functools
import gc
import importlib.metadata
import logging
import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from _pytest.logging import caplog_handler_key
from hypothesis import HealthCheck, settings

from nemo_vfm.core import secret
from nemo_vfm.data.video import realtime_guard
from tests.support import loopback, object_store
from tests.support.longest import longest_first

pytest_plugins = ["tests.support.flaky"]

# A loaded machine is no reason to fail: what a case asserts is its result, never its time. The cases drawn are the same
# in every run, so a change fails by its own doing; `make soak` draws others each time, to find what nobody has yet.
# All is said from hypothesis's "default" on: where CI is set, its own profile for that would be what ours are based on,
# and soak would draw the same cases again.
_WHATEVER_THE_MACHINE = settings(
    settings.get_profile("default"), deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ours", _WHATEVER_THE_MACHINE, derandomize=True, database=None)
settings.register_profile("soak", _WHATEVER_THE_MACHINE, derandomize=False)
settings.load_profile("ours")

# Processes that share the tests tell theirs of 80 columns; what is printed is as wide as where nobody says.
os.environ.pop("COLUMNS", None)
os.environ.setdefault("NEMO_VFM_LOG_WIDTH", "0")  # sentences are looked for, wherever a line would end

# One answer on every processor: `precision: auto` is fp32, and bf16 products are those of rounded operands.
os.environ.setdefault("NEMO_VFM_CPU_BF16", "0")

HERE = Path(__file__).parent
BORN_SO = bool(realtime_guard.real_time_threads())  # as under chrt

# Garbage of a test is small, and the collector looked for it 14 times as often: 5 to 10 % of all that Python computes.
gc.set_threshold(10_000, 20, 20)

# Each Trainer asks all packages that are installed for callbacks of theirs, which took longer than some trainings here.
importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)  # type: ignore[assignment]

# A shell's background jobs begin deaf to Ctrl-C, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def kitchen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A working directory of the test's own, in which it writes and runs recipes."""
    from tests.support.recipe_folder import Kitchen  # which imports the command line

    monkeypatch.chdir(tmp_path)
    return Kitchen(tmp_path)


@pytest.fixture(scope="session")
def small_store() -> Iterator[object_store.Failing]:
    """Our own small S3 server, which fails on order."""
    with object_store.failing() as store:
        yield store


@pytest.fixture(scope="session")
def moto_store() -> Iterator[object_store.Moto]:
    """moto's S3 server, one a session, where it is installed."""
    if not object_store.has_moto():
        pytest.skip("moto is not installed (it comes with the extra dev)")
    with object_store.moto() as store:
        yield store


@pytest.fixture(params=["small_store", "moto_store"])
def bucket(request: pytest.FixtureRequest) -> Iterator[object_store.Bucket]:
    """An empty bucket that this process's environment points at: on both servers, one after the other."""
    store: object_store.Bucket = request.getfixturevalue(request.param)
    for key in list(store.names()):
        store.delete(key)
    with object_store.reached(store):
        yield store


@pytest.fixture
def failing(small_store: object_store.Failing) -> Iterator[object_store.Failing]:
    """The small server's empty bucket, without faults yet."""
    small_store.objects.clear()
    with object_store.reached(small_store):
        yield small_store
    small_store.faults.clear()
    small_store.times = 10**9


@pytest.fixture(params=["1", "0"], ids=["fast bf16", "slow bf16"])
def fast_bf16(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Both answers of `has_fast_bf16`, one after the other, for this process and those that it starts."""
    from nemo_vfm.parallel.layers import linear as matmul_support  # which imports torch

    monkeypatch.setenv("NEMO_VFM_CPU_BF16", request.param)
    matmul_support._slow_bf16_said.cache_clear()
    yield request.param == "1"
    matmul_support._slow_bf16_said.cache_clear()


loopback.watch()


@pytest.fixture(autouse=True)  # one in place of three: each takes 2 s of all tests
def _leaves_nothing_and_reaches_nobody() -> Iterator[None]:
    """Forget the values that a test's recipes took from the environment: a process keeps them for its life.

    Fail a test that wants to reach another machine, also where a library swallowed the refusal. Fail one after which
    this process is real-time: it gives way to nobody, and the machine can stand still.
    """
    before = set(secret._known)
    loopback.BEYOND.clear()
    yield
    secret._known.clear()
    secret._known.update(before)
    tried, raised = list(loopback.BEYOND), frozenset() if BORN_SO else realtime_guard.real_time_threads()
    loopback.BEYOND.clear()
    realtime_guard.make_ordinary(raised)
    if raised:
        pytest.fail("threads of this process are real-time since this test, or since an import")
    if tried:
        pytest.fail(f"this test wanted to {', '.join(tried)}; tests reach this machine only")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Listen to loggers only where a test asks what was logged: torch has 57 that need handlers, 2 ms a test.

    Processes that share all tests begin to collect at different folders: pytest compiles a file where nobody has.
    """
    plugin = config.pluginmanager.get_plugin("logging-plugin")
    listening = plugin._runtest_for

    def runtest_for(item: pytest.Item, when: str) -> AbstractContextManager[None]:
        if "caplog" in getattr(item, "fixturenames", ()):
            return listening(item, when)
        item.stash[caplog_handler_key] = plugin.caplog_handler  # which the plugin takes away at the end
        return nullcontext()

    plugin._runtest_for = runtest_for
    logging.getLogger().addHandler(logging.NullHandler())  # else Python itself would say warnings on standard error
    given: dict[str, Any] = getattr(config, "workerinput", {})
    if not config.getoption("numprocesses", None):
        import torch  # noqa: F401 - before all others, but not in xdist's controller, which never needs it
    if given and config.option.verbose <= 0:
        _report_less(config)
    if given and [Path(one).resolve() for one in config.args] == [HERE]:
        folders = sorted({str(HERE / path.relative_to(HERE).parts[0]) for path in HERE.glob("*/**/test_*.py")})
        first = len(folders) * int(given["workerid"].removeprefix("gw")) // given["workercount"]
        config.args = folders[first:] + folders[:first]


def _report_less(config: pytest.Config) -> None:
    """Send the process that shares out the tests two messages of most tests, not six: each is Python on both sides.

    Those that are left out say that a test begins, that it has ended, and that what is around it took no time.
    """
    (interactor,) = (one for one in config.pluginmanager.get_plugins() if type(one).__name__ == "WorkerInteractor")
    send = interactor.sendevent

    def sendevent(name: str, **more: Any) -> None:
        told = more.get("data", {})
        if told.get("outcome") == "passed":
            told["keywords"] = {}  # which are asked for where a test was skipped
            if told.get("when") != "call" and told["duration"] < 0.01 and not told["sections"]:
                return
        if name not in ("logstart", "logfinish"):
            send(name, **more)

    interactor.sendevent = sendevent


@pytest.hookimpl(tryfirst=True)  # before the fixtures
def pytest_runtest_setup() -> None:
    """Begin each test with the same random numbers: whether a limit holds must not hang on the tests before it.

    `torch.manual_seed` writes down where it was called from, for CUDA's first use: half a millisecond.
    """
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules and not sys.modules["torch"].cuda.is_available():
        sys.modules["torch"].default_generator.manual_seed(0)
    elif "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


#: What make asks for, and how a file says that it has slow tests, or nothing else; house/conftest.py marks its own.
QUICK, SLOW = "not slow and not cluster and not soak", "(slow or cluster) and not soak"
SOME_SLOW = re.compile(r"\bmark\.(slow|cluster)\b|\b(real_slurm|slurm_here|three)\b")
ALL_SLOW = re.compile(r"^pytestmark = pytest\.mark\.(slow|cluster)\b", re.MULTILINE)


@functools.cache
def _says(path: Path, words: re.Pattern[str]) -> bool:
    return path.parent.name == "house" or words.search(path.read_text(encoding="utf-8")) is not None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of which nothing is asked for: two of three have no slow tests, and to import each takes long."""
    asked, is_file = config.option.markexpr, collection_path.match("test_*.py")
    if is_file and asked == SLOW and not _says(collection_path, SOME_SLOW):
        return True
    return True if is_file and asked == QUICK and _says(collection_path, ALL_SLOW) else None


def pytest_deselected(items: list[pytest.Item]) -> None:
    """See that no file would be left that has such tests."""
    marked = (item for item in items if item.get_closest_marker("slow") or item.get_closest_marker("cluster"))
    if left := sorted({str(item.path) for item in marked if not _says(item.path, SOME_SLOW)}):
        raise pytest.UsageError(f"make test-slow would not find the slow tests of {', '.join(left)}; see SOME_SLOW")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Give files that share something dear to one process."""
    from tests.support.scheduler import FilesTogether

    return FilesTogether(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collections: modules and tests stay, so each walks ever more objects and frees none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)  # when those that are not asked for are gone
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where processes share the tests, put the longest files first."""
    if hasattr(config, "workerinput"):
        items[:] = longest_first(items)


def pytest_collection_finish() -> None:
    """Leave what was collected out of garbage collections: one took a second, and some libraries ask for many.

    The garbage in it, 15 MB, stays, too: to look for it takes that second.
    """
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """The same after each file: what stays of it, imports above all, made later collections a twentieth of all time."""
    done = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return done


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print seconds and number of tests by folder, the slowest first."""
    seconds: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folder = report.nodeid.partition("::")[0].rpartition("/")[0]
                seconds[folder] += report.duration
                numbers[folder] += report.when == "call"
    terminalreporter.section("seconds by folder")
    for folder, spent_s in seconds.most_common():
        terminalreporter.write_line(f"{spent_s:8.1f} s  {numbers[folder]:5d} tests  {folder}")
