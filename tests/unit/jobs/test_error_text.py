"""The text of an error shows the user's code, not what called it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from headgate import DeclarationError
from headgate.arguments import parse_duration
from headgate.jobs.job import LONGEST_TRACEBACK, JobError, describe_error
from headgate.jobs.root_cause import root_cause


def test_an_error_below_the_users_code_shows_all_that_the_user_called() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    trace = describe_error(caught.value).traceback or ""
    assert trace.splitlines()[1].startswith(f'  File "{__file__}", line ')
    assert "in raw_decode" in trace or "in decode" in trace


def test_an_error_without_the_users_code_keeps_its_traceback() -> None:
    with pytest.raises(DeclarationError) as caught:
        parse_duration("soon", "delay")
    inner = caught.value.__traceback__
    assert inner is not None
    trace = describe_error(caught.value.with_traceback(inner.tb_next)).traceback or ""
    assert "in parse_duration" in trace
    assert "in read_duration" in trace


LONG = "INSERT INTO orders VALUES (" + "1, " * 4000 + "2): the disk is full"


def described(function: Callable[[], None]) -> JobError:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        function()
    return describe_error(caught.value)


def refuse() -> None:
    raise ValueError(LONG)


def refuse_by_cause() -> None:
    try:
        refuse()
    except ValueError as error:
        raise RuntimeError(LONG) from error


def refuse_as_a_group() -> None:
    try:
        refuse()
    except ValueError as error:
        raise ExceptionGroup("several", [error]) from None


def refuse_with_a_note() -> None:
    error = ValueError("no")
    error.add_note("\n".join(["a line of the note"] * 1000))
    raise error


@pytest.mark.parametrize("function", [refuse, refuse_by_cause, refuse_as_a_group, refuse_with_a_note])
def test_a_long_message_does_not_crowd_out_the_place(function: Callable[[], None]) -> None:
    error = described(function)
    assert error.traceback is not None
    assert len(error.traceback) <= LONGEST_TRACEBACK
    place = root_cause(error).place
    assert place is not None
    assert (place.file, place.function) == (__file__, "refuse_with_a_note" if "note" in function.__name__ else "refuse")


def test_of_a_long_message_the_traceback_has_both_ends() -> None:
    trace = described(refuse).traceback or ""
    assert trace.startswith("Traceback")
    assert "ValueError: INSERT INTO orders" in trace
    assert trace.endswith("2): the disk is full\n")
    assert "in refuse\n" in trace
