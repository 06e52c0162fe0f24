"""What all tests share."""

import gc
import logging
import os
import signal
from collections.abc import Generator

import pytest

# So that their assertions explain themselves as those of test files do.
pytest.register_assert_rewrite("tests.conformance.storage_suite", "tests.conformance.bucket_suite")

# What a shell runs in the background, or `nohup` runs, ignores these, and so would the processes that tests start to
# send them one. A handler goes when another program is started; what is ignored stays ignored.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else lambda *_: None)

# Each test's schema of PostgreSQL is new; without this, each would have to be made before an app opens it.
os.environ.setdefault("HEADGATE_MIGRATE", "true")

pytest_plugins = ["tests.postgres_server", "tests.redis_server"]


def pytest_collection_finish() -> None:
    """Half a million objects are there for good by now; to look at them again took a fifth of the CPU of all tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Generator[None, bool | None, bool | None]:
    """Leave logging as it was: a worker that runs inside of a test, ours or Celery's, sets it up for its process."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    try:
        return (yield)
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
