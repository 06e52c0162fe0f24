"""What all tests share."""

import gc
import logging
import os
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Generator
from itertools import count
from random import Random

import pytest
from hypothesis import HealthCheck, settings

import headgate.app
from tests import seeds

# So that their assertions explain themselves as those of test files do.
pytest.register_assert_rewrite("tests.conformance.storage_suite", "tests.conformance.bucket_suite")

# What a shell runs in the background, or `nohup` runs, ignores these, and so would the processes that tests start to
# send them one. A handler goes when another program is started; what is ignored stays ignored.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else lambda *_: None)

# Each test's schema of PostgreSQL is new; without this, each would have to be made before an app opens it.
os.environ.setdefault("HEADGATE_MIGRATE", "true")

# The gate repeats itself: Hypothesis tries the same examples each time, and `--randomly-seed` fixes the order. The
# nightly run names another seed. How long an example takes is no error in either: a machine may be busy.
settings.register_profile(
    "gate", max_examples=20, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("nightly", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gate" if seeds.RUN is None else "nightly")

HAS_FAILED = pytest.StashKey[bool]()
SKIPPED = pytest.StashKey[Counter[str]]()

pytest_plugins = ["tests.postgres_server", "tests.redis_server"]


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: many tests wait for a process or a server."""
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) + 1


def pytest_collection_finish() -> None:
    """Half a million objects are there for good by now; to look at them again took a fifth of the CPU of all tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give apps that get no `random` the same ones in each run: the first app of a test the first seed, and so on."""
    numbers = count()
    monkeypatch.setattr(headgate.app, "Random", lambda: Random(f"{seeds.RUN} {next(numbers)}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Format a failure with the garbage collector off.

    Before CPython 3.11.8 and 3.12.2, a collection inside `ast.parse` can raise SystemError (gh-106905) and end the run.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        report = yield
    finally:
        if was_on:
            gc.enable()
    if report.failed:
        item.stash[HAS_FAILED] = True
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    """Remove what a test leaves in its process: the log handlers of a worker that it ran, the garbage of a failure."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    try:
        return (yield)
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
        if HAS_FAILED in item.stash:
            _drop_garbage_of_failure()


def _drop_garbage_of_failure() -> None:
    """Free the frames of a failed test: what they held open is reported as an error of the test that runs next."""
    sys.last_type = sys.last_value = sys.last_traceback = None
    report, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
    finally:
        sys.unraisablehook = report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reports = terminalreporter.stats.get("skipped", [])
    config.stash[SKIPPED] = Counter(
        each.longrepr[2].removeprefix("Skipped: ") if isinstance(each.longrepr, tuple) else str(each.longrepr)
        for each in reports
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say in the last line how many tests were skipped, and why: a promise that was not tried is not kept."""
    if skipped := config.stash.get(SKIPPED, None):
        reasons = "; ".join(f"{count} × {reason}" for reason, count in skipped.most_common())
        print(f"Skipped {skipped.total()}: {reasons}")  # noqa: T201  # pytest's own reporter is closed by now
