"""Root causes, read from tracebacks as Python prints them."""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from collections.abc import Callable
from concurrent.futures.process import _RemoteTraceback
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate import Headgate, JobFailed, RetryPolicy
from headgate.arguments import parse_duration
from headgate.jobs.job import JobError, describe_error
from headgate.jobs.root_cause import CodePlace, RootCause, message_pattern, root_cause

HERE = __file__


class PaymentFailed(Exception):
    pass


def find_user(id: int) -> None:
    raise LookupError(f"user {id} not found")


def charge(id: int) -> None:
    try:
        find_user(id)
    except LookupError as error:
        raise PaymentFailed(f"order {id + 1} cannot be paid") from error


def cause_of(call: Callable[[], object]) -> RootCause:
    """Call a function that raises, and return the root cause of what is stored of its error."""
    return root_cause(stored(call))


def stored(call: Callable[[], object]) -> JobError:
    try:
        call()
    except Exception as error:
        # Without the frame of this function.
        return describe_error(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
    raise AssertionError("nothing was raised")


def in_file(path: str, source: str, **names: object) -> Callable[[], object]:
    """Return the function `task` of a module that has been installed or deployed under this path."""
    module = dict(names)
    exec(compile(source, path, "exec"), module)
    task = module["task"]
    assert callable(task)
    return task


def line_of(function: Callable[..., object], offset: int) -> int:
    return function.__code__.co_firstlineno + offset


def test_the_root_cause_is_the_exception_at_its_last_own_line() -> None:
    assert cause_of(lambda: find_user(17)) == RootCause(
        "LookupError", "user # not found", CodePlace(HERE, line_of(find_user, 1), "find_user")
    )


def test_errors_that_differ_in_values_have_the_same_root_cause() -> None:
    assert cause_of(lambda: charge(17)) == cause_of(lambda: charge(18))
    assert cause_of(lambda: charge(17)) == cause_of(lambda: find_user(19))


def test_the_innermost_exception_that_it_was_raised_from_is_the_root_cause() -> None:
    def pay() -> None:
        try:
            charge(17)
        except PaymentFailed as error:
            raise RuntimeError("no") from error

    cause = cause_of(pay)
    assert (cause.type, cause.message) == ("LookupError", "user # not found")
    assert cause.place == CodePlace(HERE, line_of(find_user, 1), "find_user")


def test_an_exception_that_was_being_handled_is_not_the_cause() -> None:
    def replace() -> None:
        try:
            charge(17)
        except PaymentFailed:
            raise KeyError("total")  # noqa: B904

    cause = cause_of(replace)
    assert (cause.type, cause.message) == ("KeyError", "'…'")
    assert cause.place == CodePlace(HERE, line_of(replace, 4), "replace")

    def hide() -> None:
        try:
            find_user(17)
        except LookupError:
            raise KeyError("total") from None

    assert cause_of(hide).type == "KeyError"

    def go_on() -> None:
        try:
            replace()
        except KeyError as error:
            raise PaymentFailed("no") from error

    assert cause_of(go_on).place == cause.place


def test_the_root_cause_of_a_timeout_is_the_timeout_at_the_line_that_it_interrupted() -> None:
    """The fault: `asyncio.exceptions.CancelledError`, for every timeout."""

    async def hang() -> None:
        await asyncio.Event().wait()

    def time_out() -> None:
        try:
            raise asyncio.CancelledError
        except asyncio.CancelledError as error:
            # As for a thread or a child process: the interrupted code has no frame.
            raise TimeoutError("the attempt took longer than its timeout of 30 s").with_traceback(None) from error

    assert cause_of(time_out).type == "TimeoutError"
    assert cause_of(time_out).message == "the attempt took longer than its timeout of # s"

    async def ask() -> None:
        app = Headgate("memory://")
        task = app.task(retry=RetryPolicy(retries=0), timeout=0.01)(hang)
        async with app:
            job = await task.enqueue()
            with pytest.raises(JobFailed):
                await job.result()
            error = (await job.status()).error
            assert error is not None
            found = root_cause(error)
            assert found.type == "TimeoutError"
            assert found.place == CodePlace(HERE, line_of(hang, 1), "hang")

    asyncio.run(ask())

    def own_timeout() -> None:
        async def wait() -> None:
            async with asyncio.timeout(0):
                await hang()

        asyncio.run(wait())

    assert cause_of(own_timeout).type == "TimeoutError"


def test_a_cause_without_frames_and_one_with_a_message_of_several_lines_are_read() -> None:
    def bare() -> None:
        raise RuntimeError("no") from ValueError("line 1\n  File of line 2\nline 3")

    place = CodePlace(HERE, line_of(bare, 1), "bare")
    assert cause_of(bare) == RootCause("ValueError", "line # File of line # line #", place)

    def empty() -> None:
        raise RuntimeError("no") from asyncio.CancelledError()

    assert cause_of(empty).type == "asyncio.exceptions.CancelledError"
    assert cause_of(empty).message == ""


def test_the_first_member_of_a_group_is_the_root_cause() -> None:
    async def fetch(id: int) -> None:
        charge(id)

    async def fetch_all() -> None:
        async with asyncio.TaskGroup() as group:
            for id in range(3):
                group.create_task(fetch(id))

    def nested() -> None:
        raise ExceptionGroup("outer", [ExceptionGroup("inner", [stored_error(charge)]), ValueError("other")])

    for call in (lambda: asyncio.run(fetch_all()), nested):
        cause = cause_of(call)
        assert (cause.type, cause.message) == ("LookupError", "user # not found")
        assert cause.place == CodePlace(HERE, line_of(find_user, 1), "find_user")


def stored_error(call: Callable[[int], object]) -> Exception:
    try:
        call(17)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_a_group_that_was_raised_from_something_has_that_as_its_cause() -> None:
    def call() -> None:
        try:
            find_user(17)
        except LookupError as error:
            raise ExceptionGroup("all", [ValueError("a")]) from error

    assert cause_of(call).type == "LookupError"


def test_code_of_python_of_packages_and_of_headgate_is_not_own_code() -> None:
    def decode() -> None:
        json.loads("{")

    def ask() -> None:
        httpx.URL("http://host:port")

    def declare() -> None:
        parse_duration("soon", "delay")

    for call in (decode, ask, declare):
        assert cause_of(call).place == CodePlace(HERE, line_of(call, 1), call.__name__)


@pytest.mark.parametrize(
    "path",
    [
        "/usr/lib/python3.12/asyncio/tasks.py",
        "/root/.local/share/uv/python/cpython-3.13/lib/python3.13/json/decoder.py",
        r"C:\Program Files\Python312\Lib\json\decoder.py",
        "/srv/shop/.venv/lib/python3.12/site-packages/headgate/engine/attempt.py",
        "<frozen importlib._bootstrap>",
        "<string>",
    ],
)
def test_a_path_of_another_machine_is_known_as_not_own(path: str) -> None:
    inner = in_file(path, "def task():\n    raise ValueError('no')\n")
    assert cause_of(inner).place is None
    outer = in_file("/srv/shop/billing.py", "def task():\n    inner()\n", inner=inner)
    assert cause_of(outer).place == CodePlace("/srv/shop/billing.py", 2, "task")
    found = cause_of(in_file("/srv/lib/billing.py", "\ndef task():\n    raise ValueError('no')\n")).place
    assert found == CodePlace("/srv/lib/billing.py", 3, "task")


def test_a_project_that_is_installed_has_its_own_lines_in_its_own_package() -> None:
    packages = "/venv/lib/python3.12/site-packages"
    client = in_file(f"{packages}/client/http.py", "def task():\n    raise OSError('reset')\n")
    shop = in_file(f"{packages}/shop/billing.py", "def task():\n    client()\n", client=client)
    assert cause_of(shop).place == CodePlace(f"{packages}/shop/billing.py", 2, "task")


def test_the_place_of_an_error_of_a_package_is_the_own_line_that_called_it() -> None:
    packages = "/venv/lib/python3.12/site-packages"
    connect = in_file(f"{packages}/core/http.py", "def task():\n    raise OSError('reset')\n")
    source = (
        "def task():\n    try:\n        connect()\n    except OSError as e:\n        raise ValueError('no') from e\n"
    )
    get = in_file(f"{packages}/client/api.py", source, connect=connect)
    shop = in_file("/srv/shop/billing.py", "def task():\n    get()\n", get=get)
    assert cause_of(shop) == RootCause("OSError", "reset", CodePlace("/srv/shop/billing.py", 2, "task"))
    installed = in_file(f"{packages}/shop/billing.py", "def task():\n    get()\n", get=get)
    assert cause_of(installed).place == CodePlace(f"{packages}/shop/billing.py", 2, "task")


def test_an_error_without_a_traceback_has_no_place() -> None:
    assert root_cause(JobError("JobExpired", "not started by 12:00:03")) == RootCause(
        "JobExpired", "not started by #", None
    )


@pytest.mark.parametrize("size", [100, 5000, 5500, *range(5900, 6100, 7), 7000])
def test_a_traceback_that_is_cut_at_its_beginning_is_read_as_far_as_it_goes(size: int) -> None:
    def look_up() -> None:
        raise LookupError("y" * size)

    def pay() -> None:
        try:
            look_up()
        except LookupError as error:
            raise PaymentFailed("no") from error

    error = stored(pay)
    cause = root_cause(error)
    assert error.traceback is not None
    assert cause.type == ("LookupError" if "\nLookupError: y" in error.traceback else error.type)
    shown = error.traceback if len(error.traceback) < 6144 else error.traceback.partition("\n")[2]
    assert cause.place is not None
    assert cause.place.function == ("look_up" if ", in look_up\n" in shown else "pay")


def test_the_error_of_a_process_pool_is_that_of_the_other_process() -> None:
    remote = "".join(traceback.format_exception(stored_error(charge)))

    # What a pool sets as the cause; it is made with a text.
    made: Any = _RemoteTraceback

    def call() -> None:
        raise PaymentFailed("order 18 cannot be paid") from made(f'\n"""\n{remote}"""')

    cause = cause_of(call)
    assert (cause.type, cause.message) == ("LookupError", "user # not found")
    assert cause.place == CodePlace(HERE, line_of(find_user, 1), "find_user")


@pytest.mark.parametrize(
    ("message", "pattern"),
    [
        ("user 17 not found", "user # not found"),
        ("no 'ada' in \"shop of bob\"", "no '…' in '…'"),
        ("it's not the users' order", "it's not the users' order"),
        ("value 'it's' is wrong", "value '…' is wrong"),
        ("cut 'in the middle", "cut '…'"),
        (r"escaped 'a\'b' ends", "escaped '…' ends"),
        ("job 01a1ff7c-0000-7000-8000-00000000abcd failed", "job # failed"),
        ("commit deadbeefcafe is unknown", "commit # is unknown"),
        ("<Order object at 0x7f3a2b4c5d6e>", "<Order object at #>"),
        ("customer cus_9s6XKzkNRiz8i3 is blocked", "customer # is blocked"),
        ("10.0.0.1:5432 refused at 2026-05-01T08:00:00.123", "# refused at #"),
        ("read timeout=30.5", "read timeout=#"),
        ("two\n  lines", "two lines"),
        ("", ""),
    ],
)
def test_values_are_no_part_of_a_pattern(message: str, pattern: str) -> None:
    assert message_pattern(message) == pattern


@pytest.mark.parametrize("part", ["'", "' ", "a1", "1.", "\\'", '"', "x", "f-"])
def test_the_pattern_of_a_long_message_is_short_and_found_in_linear_time(part: str) -> None:
    def cost(length: int) -> float:
        """The least time of this thread, of three tries: expressions are matched in C, where no line is executed."""
        times = []
        for _ in range(3):
            began = time.thread_time()
            assert len(message_pattern(part * (length // len(part)))) <= 200
            times.append(time.thread_time() - began)
        return min(times)

    # Steps that grow with the square of the length would be 256 times as many.
    assert cost(16 * 2048) < 100 * cost(2048)


def test_the_places_of_a_text_that_is_no_traceback_are_none() -> None:
    for text in ("", "Traceback …", "+-+-- 1 --", "\n\n\n", 'File "x", line 1', Path(HERE).read_text()[:6144]):
        assert root_cause(JobError("E", "no", text)).type == "E"
