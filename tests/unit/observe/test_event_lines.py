"""Each event that has a level has a log line."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest

from headgate.jobs import event as events
from headgate.jobs.event import Event, JobFailure, NodeCrashed, NodeLost, NodeStarted, NodeStopping, ScheduleOverdue
from headgate.jobs.job import JobError, JobState
from headgate.observe.log import LOGGED, log_event, logged_kinds

KINDS = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)]


def value_of(annotation: Any) -> Any:
    """Return a value of that type that is easily found in a text."""
    origin = get_origin(annotation)
    if origin is Literal or (isinstance(annotation, type) and issubclass(annotation, JobState)):
        return next(iter(get_args(annotation) or JobState))
    if origin in (tuple, Sequence, Mapping):
        return {} if origin is Mapping else ()
    if get_args(annotation):
        return value_of(get_args(annotation)[0])
    values = {str: "acme\nshop", int: 7, float: 7.5, bool: True, JobError: JobError("ValueError", "no", "at\nline 7")}
    return values[annotation]


def event_of(kind: type[Event]) -> Event:
    hints = get_type_hints(kind)
    return kind(**{field.name: value_of(hints[field.name]) for field in msgspec.structs.fields(kind)})


@pytest.mark.parametrize("kind", LOGGED, ids=lambda kind: kind.__name__)
def test_an_event_with_a_level_is_written_as_one_line_and_a_traceback(
    kind: type[Event], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="headgate")
    event = event_of(kind)
    log_event(event)
    (record,) = caplog.records
    line, *traceback = record.getMessage().splitlines()
    assert line
    assert len(traceback) == (2 if event.traceback() else 0)
    assert record.levelno == event.own_level


@pytest.mark.parametrize("kind", ["StorageUnavailable", "StorageLost"])
def test_a_node_that_its_store_has_ended_logs_no_traceback(kind: str) -> None:
    """The fault: that of a worker whose SQLite file was removed was 30 lines of Headgate's own code."""
    error = JobError(f"headgate.errors.{kind}", "jobs.db was removed", "Traceback (most recent call last):")
    assert NodeCrashed(at=0, node="node-1", error=error).traceback() is None


def test_an_event_without_a_level_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="headgate")
    silent = [kind for kind in KINDS if kind.level is None]
    assert silent
    for kind in silent:
        log_event(event_of(kind))
    assert not caplog.records


def test_of_each_job_only_its_failure_is_logged_unless_more_is_requested(caplog: pytest.LogCaptureFixture) -> None:
    def of_each_job(**options: bool) -> set[str]:
        return {kind.__name__ for kind in logged_kinds(**options) if kind.is_of_each_job}

    caplog.set_level(logging.INFO, logger="headgate")
    assert of_each_job() == set()
    assert of_each_job(jobs=True) == {"JobFinished"}
    caplog.set_level(logging.DEBUG, logger="headgate")
    assert of_each_job() == {"JobStarted", "JobFinished", "JobReturned"}
    caplog.set_level(logging.CRITICAL, logger="headgate")
    assert JobFailure in logged_kinds(jobs=True)


def test_a_node_without_tasks_and_one_that_stops_with_running_jobs_warn() -> None:
    started = event_of(NodeStarted)
    assert isinstance(started, NodeStarted)
    started = msgspec.structs.replace(started, in_session=False)
    assert started.own_level == logging.WARNING
    assert msgspec.structs.replace(started, tasks=("sync",)).own_level == logging.INFO
    # In a notebook, as its page shows it, the cells with the tasks come after the one that starts the app.
    in_notebook = msgspec.structs.replace(started, in_session=True)
    assert in_notebook.own_level == logging.INFO
    assert "; no tasks yet; " in in_notebook.line()
    assert NodeStopping(at=1, node="n", running=1).own_level == logging.WARNING
    assert NodeStopping(at=1, node="n", running=0).own_level == logging.INFO


def test_the_command_of_an_overdue_schedule_has_its_name_as_one_word() -> None:
    event = ScheduleOverdue(at=0, schedule="every day; reboot", task="sync", lacks="task", due_at=0)
    assert event.line().endswith("headgate schedules remove 'every day; reboot'")


def test_the_line_of_a_dead_node_has_no_zeros() -> None:
    """The fault: "0 of its jobs wait again, 0 failed as poisonous", of a script that was killed between two jobs."""
    assert NodeLost(at=1, node="n", returned=0, poisonous=0).line() == "n died; it ran no job"
    assert NodeLost(at=1, node="n", returned=3, poisonous=0).line() == "n died: 3 of its jobs wait again"
    assert NodeLost(at=1, node="n", returned=3, poisonous=0, known="dead").line() == "n died: 3 of its jobs wait again"
    assert (
        NodeLost(at=1, node="n", returned=1, poisonous=0, known="left").line() == "n had left: 1 of its jobs wait again"
    )
    assert NodeLost(at=1, node="n", returned=0, poisonous=1, completed=2).line() == (
        "n died: 0 of its jobs wait again, 2 were complete and succeeded, 1 failed as poisonous (three lost attempts)"
    )
