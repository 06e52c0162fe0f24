"""Retention as it is set in code and in the environment."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headgate.errors import DeclarationError
from headgate.jobs.audit import AuditLevel
from headgate.jobs.job import RetentionTerms
from headgate.jobs.retention import DAY, Retention, own_retention, parse_retention, retention_of
from headgate.jobs.state import JobState
from headgate.settings import load_settings


def test_one_duration_applies_to_final_jobs_and_not_to_audit_records() -> None:
    assert retention_of(3600) == Retention(3600, 3600, 3600, 3600, 90 * DAY)
    assert retention_of(timedelta(days=1)).failed == DAY
    assert Retention() == retention_of(7 * DAY)


def test_a_mapping_sets_some_durations_and_keeps_the_others() -> None:
    given = retention_of({"succeeded": 3600, "failed": timedelta(days=30)})
    assert given == Retention(3600, 30 * DAY, 7 * DAY, 7 * DAY, 90 * DAY)
    of = [given.of(state) for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)]
    assert of == [3600, 30 * DAY, 7 * DAY]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("604800", Retention()),
        ("1.5h", retention_of(5400)),
        ("succeeded=1h,failed=30d", Retention(3600, 30 * DAY)),
        (" succeeded = 90 s , cancelled = 2w ,", Retention(90, 7 * DAY, 14 * DAY)),
        ("audit=365d", Retention(audit=365 * DAY)),
        ("0", Retention(0, 0, 0, 0)),
        ("succeeded=0", Retention(succeeded=0)),
    ],
)
def test_retention_can_be_set_as_text_in_the_environment(text: str, expected: Retention) -> None:
    assert parse_retention(text) == expected
    assert load_settings({}, {"HEADGATE_RETENTION": text}).retention == expected


def test_jobs_carry_the_retention_of_the_app_if_a_part_of_it_is_0() -> None:
    assert retention_of({"succeeded": 0, "failed": 60}).own_terms == RetentionTerms(
        0, 60, round(7 * DAY), round(7 * DAY)
    )
    assert Retention().own_terms is None


@pytest.mark.parametrize("text", ["", "soon", "-5", "1y", "succeeded=soon", "1h=succeeded", "=1h"])
def test_text_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(DeclarationError, match=r"(?i)retention"):
        parse_retention(text)


@pytest.mark.parametrize(
    "given",
    [-1, True, "soon", "", {"audit": 0}, {"running": 5}, {"failed": "1x"}, None, float("nan"), timedelta.max],
)
def test_invalid_values_are_refused(given: Any) -> None:
    with pytest.raises(DeclarationError, match="retention"):
        retention_of(given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0, RetentionTerms(0, 0, 0, 0)),
        (0.2, RetentionTerms(1, 1, 1, 1)),
        ("1h", RetentionTerms(3600, 3600, 3600, 3600)),
        ("forever", RetentionTerms(None, None, None, None)),
        ({"succeeded": 0, "failed": "forever"}, RetentionTerms(0, None, 14 * 86400, 7 * 86400)),
        ({}, RetentionTerms(604800, 604800, 14 * 86400, 604800)),
    ],
)
def test_a_task_or_a_job_has_its_own_retention(given: Any, expected: RetentionTerms) -> None:
    assert own_retention(given, Retention(cancelled=14 * DAY).terms, "task 'work'") == expected


@pytest.mark.parametrize("given", [-1, True, "soon", {"audit": 1}, {"running": 5}, {"failed": "1x"}])
def test_an_own_retention_that_makes_no_sense_is_refused(given: Any) -> None:
    with pytest.raises(DeclarationError, match=r"task 'work'.*retention"):
        own_retention(given, Retention().terms, "task 'work'")


def test_an_argument_overrides_the_environment() -> None:
    environment = {"HEADGATE_RETENTION": "1h", "HEADGATE_AUDIT": "Errors", "HEADGATE_LOG_LEVEL": "debug"}
    assert load_settings({"retention": {"failed": 60}}, environment).retention == Retention(failed=60)
    settings = load_settings({}, environment)
    assert (settings.audit, settings.log_level) == (AuditLevel.ERRORS, "DEBUG")
    assert load_settings({"audit": "none"}, environment).audit is AuditLevel.NONE


@pytest.mark.parametrize(
    "wrong", [{"audit": "all"}, {"log_lines": -1}, {"log_lines": 1_000_000}, {"log_level": "LOUD"}]
)
def test_other_invalid_settings_are_refused(wrong: dict[str, object]) -> None:
    (name,) = wrong
    with pytest.raises(DeclarationError, match=name):
        load_settings(wrong, {})
