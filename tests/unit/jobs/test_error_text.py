"""The text of an error shows the user's code, not what called it."""

from __future__ import annotations

import json

import pytest

from headgate import DeclarationError
from headgate.arguments import parse_duration
from headgate.jobs.job import describe_error


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
