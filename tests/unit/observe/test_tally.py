"""What is counted, without an app around it."""

from __future__ import annotations

import logging

import pytest

from headgate.engine.bus import EventBus
from headgate.jobs.event import Event, JobEnqueued, JobFailure, JobFinished
from headgate.observe.tally import Histogram


def test_a_value_counts_up_to_the_first_bound_that_is_not_below_it() -> None:
    histogram = Histogram((1.0, 5.0))
    for value in (0.5, 1.0, 1.1, 7.0):
        histogram.observe(value)
    assert histogram.cumulated() == [("1.0", 2.0), ("5.0", 3.0), ("+Inf", 4.0)]
    assert histogram.total == pytest.approx(9.6)


def test_a_tap_is_called_inside_publish_with_its_kind_alone_and_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    bus = EventBus()
    logged: list[Event] = []

    def fail(event: Event) -> None:
        raise ValueError

    assert not bus.has_listener(JobEnqueued)
    bus.tap({JobEnqueued: fail})
    bus.tap({JobEnqueued: logged.append})
    event = JobEnqueued(at=0, job_id="1", task="work", queue="mail", run_at=0)
    with caplog.at_level(logging.ERROR):
        bus.publish(event)
    assert logged == [event]
    assert "an event counter failed on JobEnqueued" in caplog.text
    assert not bus.has_listener(JobFinished)
    bus.tap({JobFinished: logged.append})
    assert bus.has_listener(JobFinished)
    assert not bus.has_listener(JobFailure), "a kind of a kind is another one for a tap"
