"""What can run in a child process, and what is refused at declaration."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate import DeclarationError, Headgate
from headgate.tasks.executor_kind import find_function, usable_cores
from tests.internals import registry_of
from tests.until import patient


def at_the_top() -> None: ...


async def waits() -> None: ...


class Group:
    @staticmethod
    def inside() -> None: ...


def make() -> Callable[[], None]:
    def nested() -> None: ...

    return nested


@pytest.mark.parametrize("function", [at_the_top, Group.inside])
def test_a_function_that_can_be_imported_is_found_again(function: Any) -> None:
    task = Headgate("memory://").task(process=True)(function)
    assert find_function(function.__module__, function.__qualname__) is task.function


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (waits, "is for a plain def that computes"),
        (make(), r"has to find 'make\.<locals>\.nested' by import"),
        (lambda: None, "has to find '<lambda>' by import"),
        (len, "needs a plain function"),
        (Group, "needs a plain function"),
    ],
)
def test_what_a_child_cannot_find_or_has_no_use_for_is_an_error(function: Any, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        Headgate("memory://").task(name="task", process=True)(function)


@pytest.mark.parametrize("is_process", [True, False])
def test_a_second_function_of_the_same_name_is_an_error(is_process: bool) -> None:
    """The fault: the child found the later one by the name of the function, and ran it for jobs of both tasks."""
    app = Headgate("memory://")
    app.task(name="first", process=True)(at_the_top)
    # The same function is found for both.
    app.task(name="second", process=True)(at_the_top)
    with pytest.raises(DeclarationError, match=r"'first' and 'third' are both 'at_the_top' .* rename one of the func"):
        app.task(name="third", process=is_process)(same_name(at_the_top))
    assert list(app.tasks) == ["first", "second"]


def same_name(function: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(function)
    def other() -> None: ...

    return other


def test_process_is_true_or_false() -> None:
    """The fault: process="no" made it a process task."""
    with pytest.raises(DeclarationError, match="task 'at_the_top': process='no' is not True or False"):
        Headgate("memory://").task(process="no")(at_the_top)  # type: ignore[call-overload]


TYPED = "from headgate import Headgate\ndef f(): ...\n\nHeadgate('memory://').task(process=True)(f)\n"


@pytest.mark.parametrize("words", [["-c", TYPED], ["-m", "asyncio"], ["-"]])
def test_what_was_typed_in_is_an_error(words: list[str]) -> None:
    """The fault: `python -m asyncio` and `python -` have a file, and each attempt failed, without such a name."""
    ran = subprocess.run(
        [sys.executable, *words],
        input=TYPED,
        capture_output=True,
        text=True,
        timeout=patient(15),
        check=False,
    )
    assert "what was typed in has no file; put it in one" in ran.stderr


def test_the_slots_of_a_queue_follow_what_its_tasks_take() -> None:
    app = Headgate("memory://")
    cores = usable_cores()
    for name in ("waiting", "blocking", "computing", "mixed", "declared"):
        app.queue(name, concurrency=7 if name == "declared" else None)
    app.task(name="a", queue="waiting")(waits)
    app.task(name="b", queue="blocking")(at_the_top)
    for name in ("computing", "mixed", "declared"):
        app.task(name=name, queue=name, process=True)(at_the_top)
    app.task(name="c", queue="mixed")(waits)
    slots = {name: registry_of(app).concurrency(name, None) for name in registry_of(app).queues if name != "default"}
    expected = {"waiting": 100, "blocking": max(4, 2 * cores), "computing": cores, "mixed": cores, "declared": 7}
    assert slots == expected


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "1600000 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "300000\n"}, 8),
    ],
)
def test_a_container_may_use_as_many_cores_as_its_cpu_limit_allows(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: with a limit of one core on a machine with 64, a queue of process tasks had 64 slots, and children."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == cores
