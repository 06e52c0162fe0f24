"""Jobs as data: states, what crosses into storage, and errors as text."""

from __future__ import annotations

import msgspec
import pytest

from headgate.jobs.job import BucketRef, JobError, JobOptions, JobState, NewJob, RetryTerms, truncated_error

JOB = NewJob(
    id="job",
    task="sync_tenant",
    queue="default",
    payload='["acme"]',
    priority=0,
    delayed=False,
    run_at=1,
    enqueued_at=1,
)


def test_all_states_but_waiting_and_running_are_final() -> None:
    assert [state for state in JobState if not state.is_final] == [JobState.WAITING, JobState.RUNNING]


def test_a_state_is_its_name() -> None:
    assert f"{JobState.WAITING}" == "waiting"
    assert JobState("failed") is JobState.FAILED


def test_a_job_comes_back_from_json_as_it_was() -> None:
    job = msgspec.structs.replace(
        JOB,
        buckets=(BucketRef("sync_tenant:rate", "acme"), BucketRef("everyone", "")),
        costs=(1, 5),
        headers={"tenant": "acme"},
        options=JobOptions(timeout=2.5, retry=RetryTerms(retries=0)),
        expires_at=10,
    )
    assert msgspec.json.decode(msgspec.json.encode(job), type=NewJob) == job


def test_a_job_is_one_json_array() -> None:
    assert msgspec.json.decode(msgspec.json.encode(JOB))[:4] == ["job", "sync_tenant", "default", '["acme"]']


def test_a_job_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        JOB.priority = 5  # type: ignore[misc]


def test_options_store_only_what_they_override() -> None:
    assert msgspec.json.encode(JobOptions()) == b"{}"
    assert msgspec.json.encode(JobOptions(retry=RetryTerms(retries=0))) == b'{"retry":{"retries":0}}'


class Refusal(Exception):
    """An error of the user's own."""


def test_an_error_is_kept_with_its_full_name() -> None:
    assert truncated_error(Refusal("no")) == JobError(f"{__name__}.Refusal", "no")


def test_a_built_in_error_goes_without_its_module() -> None:
    assert truncated_error(ValueError("no")) == JobError("ValueError", "no")


def test_a_long_message_keeps_its_beginning() -> None:
    message = truncated_error(ValueError("a" * 2000 + "b" * 2000)).message
    assert message == "a" * 2000 + "b" * 48


def test_a_long_traceback_keeps_its_end() -> None:
    traceback = truncated_error(ValueError(), "a" * 6000 + "b" * 6000).traceback
    assert traceback == "a" * 144 + "b" * 6000


def test_an_error_without_a_traceback_has_none() -> None:
    assert truncated_error(ValueError()).traceback is None


class Unprintable(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise LookupError("no text")


def test_an_error_that_cannot_be_printed_says_so() -> None:
    assert truncated_error(Unprintable()).message == "<LookupError while printing the error>"


def test_text_that_no_database_can_keep_is_escaped() -> None:
    error = truncated_error(ValueError("nul \x00 and surrogate \udcff"), "line \x00\udcff")
    assert error.message == "nul \\x00 and surrogate \\udcff"
    assert error.traceback == "line \\x00\\udcff"
    assert msgspec.json.decode(msgspec.json.encode(error), type=JobError) == error


def test_a_stored_error_omits_empty_fields() -> None:
    assert msgspec.json.encode(JobError("ValueError", "no")) == b'{"type":"ValueError","message":"no"}'


def test_a_long_class_name_is_cut() -> None:
    long = type("E" * 500, (Exception,), {"__module__": "app"})
    assert truncated_error(long()).type == "app." + "E" * 196
