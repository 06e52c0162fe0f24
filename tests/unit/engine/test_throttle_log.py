"""The throttle log counts each closed bucket that a claim meets in exactly one event."""

from __future__ import annotations

import pytest

from headgate.clock import SECOND
from headgate.engine import claim_loop
from headgate.engine.claim_loop import ThrottleLog
from headgate.jobs.event import JobThrottled, LimitThrottled
from headgate.jobs.job import BucketRef, ClaimedJob
from headgate.storage.records import Throttled


def met(key: str, waiting: int = 1, *, limit: str = "api", job_id: str = "j1") -> Throttled:
    return Throttled(BucketRef(limit, key), 7 * SECOND, waiting, job_id)


def test_a_bucket_that_makes_room_for_others_is_summed_up() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claim_loop, "MAX_BUCKETS", 2)
        log = ThrottleLog()
        published = [
            (event.key, event.count)
            for key in ("a", "a", "a", "b", "c")
            for event in log.by_bucket([met(key)], at=0, now=0)
        ]
        published += [(event.key, event.count) for event in log.close(at=0, store_now=0)]
    assert published == [("a", 1), ("b", 1), ("c", 1), ("a", 2)]


def test_the_event_of_a_bucket_has_the_first_waiting_job_as_it_was_met_last() -> None:
    log = ThrottleLog()
    assert [event.job_id for event in log.by_bucket([met("a", job_id="j1")], at=0, now=0)] == ["j1"]
    assert log.by_bucket([met("a", job_id="j2"), met("a", job_id="j3")], at=1, now=SECOND) == []
    (event,) = log.close(at=2, store_now=2)
    assert isinstance(event, JobThrottled)
    assert (event.job_id, event.count) == ("j3", 2)


def test_a_limit_that_is_met_no_more_is_summed_up_when_another_one_is_met() -> None:
    log = ThrottleLog()
    assert [event.count for event in log.by_limit([met("a")], at=0, now=0, store_now=0)] == [1]
    assert log.by_limit([met("a"), met("b")], at=1, now=SECOND, store_now=1) == []
    first, second = log.by_limit([met("a", limit="other")], at=2, now=40 * SECOND, store_now=2)
    assert (first.limit, first.keys, first.count) == ("api", 2, 2)
    assert (second.limit, second.keys, second.count) == ("other", 1, 1)
    assert log.close(at=3, store_now=3) == []


def test_the_event_of_a_limit_names_the_key_with_the_most_waiting_jobs() -> None:
    log = ThrottleLog()
    (event,) = log.by_limit([met("a", 3), met("b", 8), met("c", 5), met("b", 7)], at=5, now=0, store_now=5)
    assert (event.keys, event.waiting, event.count) == (3, 15, 4)
    assert (event.key, event.opens_at, event.at) == ("b", 7 * SECOND, 5)


def test_the_keys_that_are_kept_of_a_limit_are_bounded() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claim_loop, "MAX_BUCKETS", 2)
        (event,) = ThrottleLog().by_limit([met(key) for key in "abcd"], at=0, now=0, store_now=0)
    assert (event.keys, event.count) == (2, 4)


def test_the_event_of_a_limit_counts_no_job_that_has_started_here_or_whose_bucket_has_opened() -> None:
    log = ThrottleLog()
    started = ClaimedJob("j1", "work", "default", "{}", 1, 1, 0, 0, 0, 0, (BucketRef("api", "p"),))
    permit = Throttled(BucketRef("api", "p"), None, 2, "j1")
    for now in (0, 1):
        log.by_limit([met("a", 3), permit], at=0, now=now, store_now=0)
    log.note_started([started])
    (event,) = log.close(at=8, store_now=8 * SECOND - 1)
    assert isinstance(event, LimitThrottled)
    assert (event.key, event.keys, event.waiting, event.count) == ("a", 2, 4, 2)
    for now in (0, 1):
        log.by_limit([met("a", 3), permit], at=0, now=now, store_now=0)
    log.note_started([started] * 2)
    (event,) = log.close(at=8, store_now=8 * SECOND)
    assert isinstance(event, LimitThrottled)
    assert (event.key, event.keys, event.waiting, event.count, event.opens_at) == ("p", 0, 0, 2, None)
    assert (
        event.line()
        == "limit api: this node knows of no more waiting jobs [throttled limit=api key=p keys=0 waiting=0 count=2]"
    )
