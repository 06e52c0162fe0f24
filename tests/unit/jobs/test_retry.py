"""Retry policies: how often, how long, and after which errors."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest

from headgate.clock import SECOND
from headgate.errors import DeclarationError
from headgate.jobs.retry import RetryPolicy


def wait(policy: RetryPolicy, failure: int, random: Random) -> int:
    microseconds = policy.wait_after(failure, random)
    assert microseconds is not None
    return microseconds


def delays(policy: RetryPolicy, failures: int) -> list[float]:
    return [wait(policy, failure, Random(0)) / SECOND for failure in range(1, failures + 1)]


def test_a_failed_attempt_is_tried_again_three_times_by_default() -> None:
    assert RetryPolicy().retries == 3


def test_each_wait_is_twice_the_one_before_up_to_the_cap() -> None:
    assert delays(RetryPolicy(jitter=False, cap=10), 6) == [1, 2, 4, 8, 10, 10]


def test_the_base_is_the_first_wait() -> None:
    assert delays(RetryPolicy(jitter=False, base=timedelta(seconds=3)), 3) == [3, 6, 12]


def test_a_base_above_the_cap_is_capped() -> None:
    assert delays(RetryPolicy(jitter=False, base=100, cap=60), 2) == [60, 60]


def test_the_cap_is_an_hour_by_default_however_many_failures() -> None:
    assert wait(RetryPolicy(jitter=False), 13, Random()) == 3600 * SECOND
    assert wait(RetryPolicy(jitter=False), 10_000, Random()) == 3600 * SECOND


def test_jitter_spreads_the_wait_over_all_of_it() -> None:
    random = Random(1)
    waits = [wait(RetryPolicy(base=8), 1, random) for _ in range(2_000)]
    assert min(waits) < SECOND // 10
    assert max(waits) > 8 * SECOND - SECOND // 10
    assert all(0 <= wait <= 8 * SECOND for wait in waits)
    assert abs(sum(waits) / len(waits) - 4 * SECOND) < SECOND // 4


def test_jitter_comes_from_the_random_source_it_is_given() -> None:
    assert wait(RetryPolicy(), 5, Random(7)) == wait(RetryPolicy(), 5, Random(7))


def test_named_delays_are_used_as_they_are() -> None:
    policy = RetryPolicy(delays=[1, timedelta(minutes=1), 0.5])
    assert policy.retries == 3
    assert delays(policy, 3) == [1, 60, 0.5]


def test_named_delays_are_kept_apart_from_the_list_they_came_from() -> None:
    given = [1.0, 2.0]
    policy = RetryPolicy(delays=given)
    given.clear()
    assert delays(policy, 2) == [1, 2]


def test_more_failures_than_named_delays_use_the_last_one() -> None:
    assert delays(RetryPolicy(delays=[1, 2]), 4) == [1, 2, 2, 2]


def test_no_named_delays_mean_no_retries() -> None:
    assert RetryPolicy(delays=[]).retries == 0


def test_a_backoff_is_asked_with_the_failures_so_far() -> None:
    assert delays(RetryPolicy(backoff=lambda failures: failures * 10), 3) == [10, 20, 30]


def test_a_backoff_that_takes_two_arguments_gets_the_error_as_well() -> None:
    policy = RetryPolicy(backoff=lambda failures, error: failures * error.errno)
    assert policy.wait_after(2, Random(0), OSError(7, "busy")) == 14 * SECOND
    # One that can be called with the failures alone is: its second parameter may mean anything.
    own = RetryPolicy(backoff=lambda failures, factor=10: failures * factor)
    assert own.wait_after(2, Random(0), OSError(7, "busy")) == 20 * SECOND


def test_a_negative_wait_of_a_backoff_is_none() -> None:
    assert delays(RetryPolicy(backoff=lambda _failures: timedelta(seconds=-5)), 1) == [0]


def test_delays_and_a_backoff_exclude_each_other() -> None:
    with pytest.raises(DeclarationError, match="not both"):
        RetryPolicy(delays=[1], backoff=lambda _failures: 1)


def test_negative_retries_are_refused() -> None:
    with pytest.raises(DeclarationError, match=r"retries=-1\) is negative; use 0"):
        RetryPolicy(retries=-1)


def test_negative_times_are_refused() -> None:
    with pytest.raises(DeclarationError, match="cannot be negative"):
        RetryPolicy(base=-1)
    with pytest.raises(DeclarationError, match="cannot be negative"):
        RetryPolicy(cap=timedelta(seconds=-1))


def test_every_error_is_retried_by_default() -> None:
    assert RetryPolicy().accepts(ValueError())
    assert RetryPolicy().accepts(TimeoutError())


def test_errors_to_give_up_on_are_not_retried() -> None:
    policy = RetryPolicy(give_up_on=(LookupError, TypeError))
    assert not policy.accepts(KeyError())
    assert not policy.accepts(TypeError())
    assert policy.accepts(ValueError())


def test_with_errors_to_retry_on_only_those_are_retried() -> None:
    policy = RetryPolicy(retry_on=OSError)
    assert policy.accepts(ConnectionError())
    assert not policy.accepts(ValueError())


def test_giving_up_goes_before_retrying() -> None:
    policy = RetryPolicy(retry_on=OSError, give_up_on=FileNotFoundError)
    assert policy.accepts(ConnectionError())
    assert not policy.accepts(FileNotFoundError())


def test_a_filter_may_be_a_function_of_the_error() -> None:
    def is_busy(error: Exception) -> bool:
        return getattr(error, "errno", None) == 16

    policy = RetryPolicy(retry_on=(TimeoutError, is_busy), give_up_on=lambda error: "disk" in str(error))
    assert policy.accepts(OSError(16, "busy"))
    assert policy.accepts(TimeoutError())
    assert not policy.accepts(OSError(2, "not there"))
    assert not policy.accepts(OSError(16, "the disk is busy"))
    assert policy.accepts(ExceptionGroup("", [OSError(16, "busy"), TimeoutError()]))
    assert not policy.accepts(ExceptionGroup("", [OSError(16, "busy"), OSError(2, "not there")]))
