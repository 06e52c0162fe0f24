"""Conditions of alerts: what can be written, what holds, and what a message says."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headgate import DeclarationError
from headgate.clock import SECOND
from headgate.jobs.alert import AlertRecord, Condition, Reading, next_message, parse_condition

RECORD = AlertRecord(
    id="a1", alert="ops", condition="queue_lag(mail) > 60", subject="mail", value=93.2, started_at=0, seen_at=0,
    ended_at=None, sent=0, sent_at=None, tries=0, send_at=0, error=None,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("queue_lag>60", Condition("queue_lag", None, 60)),
        (" queue_lag ( mail )  >  1.5m ", Condition("queue_lag", "mail", 90)),
        ("waiting(mail) > 10000", Condition("waiting", "mail", 10000)),
        ("failures>10/m", Condition("failures", None, 10, 60 * SECOND)),
        ("failures(billing.pay) > 0/90s", Condition("failures", "billing.pay", 0, 90 * SECOND)),
        ("failures > 5/2h", Condition("failures", None, 5, 7200 * SECOND)),
        ("node_lost", Condition("node_lost")),
        ("schedule_overdue", Condition("schedule_overdue")),
        ("limit_unavailable", Condition("limit_unavailable")),
    ],
)
def test_a_condition_is_read_and_written_in_one_form(text: str, condition: Condition) -> None:
    assert parse_condition(text, "alert") == condition
    assert parse_condition(str(condition), "alert") == condition


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (60, r"alert 'ops': 60 is not a condition; there are \"queue_lag > 60\", "),
        ("", "'' is not a condition"),
        ("queue_lag >= 60", "'queue_lag >= 60' compares in another way than by `>`"),
        ("queue_lag", "'queue_lag' needs a threshold; write for example 'queue_lag > 60'$"),
        ("queue_lag(mail)", r"write for example 'queue_lag > 60', or for one queue 'queue_lag\(mail\) > 60'"),
        ("queue_lag > soon", "'soon' in 'queue_lag > soon' is no number of seconds"),
        ("waiting > 1.5", "'1.5' in 'waiting > 1.5' is no number of jobs; write for example 'waiting > 10000'"),
        ("failures > 10", "'10' in 'failures > 10' is no count in a time; write for example 'failures > 10/m'"),
        ("failures > 10/s", "counts over s; a period is from 10s to 1d"),
        ("failures > 10/2d", "counts over 2d; a period is from 10s to 1d"),
        ("node_lost > 1", "'node_lost > 1' takes no name and no threshold; write 'node_lost'"),
        ("node_lost(a)", "takes no name and no threshold"),
        ("queue_lags > 1", "there is no condition 'queue_lags'; did you mean 'queue_lag'"),
    ],
)
def test_what_is_no_condition_is_refused_with_what_to_write(text: object, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        parse_condition(text, "alert 'ops'")


@given(st.text(max_size=30))
def test_any_text_is_a_condition_or_a_declaration_error(text: str) -> None:
    try:
        condition = parse_condition(text, "alert")
    except DeclarationError:
        return
    assert parse_condition(str(condition), "alert") == condition


def test_a_condition_holds_above_its_threshold_for_its_subject() -> None:
    readings = [Reading("mail", 60.0), Reading("sync", 60.1), Reading("slow", 90)]
    assert [each.subject for each in Condition("queue_lag", None, 60).holding(readings)] == ["sync", "slow"]
    assert Condition("queue_lag", "slow", 60).holding(readings) == [Reading("slow", 90)]
    assert Condition("queue_lag", "mail", 60).holding(readings) == []
    assert Condition("node_lost").holding([Reading("a")]) == [Reading("a")]


def test_each_message_has_its_own_id_and_all_of_one_alert_have_another() -> None:
    first, again = (
        next_message(RECORD, "sqlite:///jobs.db"),
        next_message(replace(RECORD, tries=3), "sqlite:///jobs.db"),
    )
    assert first == again
    records = [RECORD, replace(RECORD, sent=1), replace(RECORD, sent=1, ended_at=60 * SECOND)]
    messages = [next_message(record, "store") for record in records]
    assert [(each.id, each.number, each.state) for each in messages] == [
        ("a1-1", 1, "firing"), ("a1-2", 2, "firing"), ("a1-end", 2, "resolved"),
    ]  # fmt: skip
    assert {each.alert_id for each in messages} == {"a1"}
    # That it has ended is told after its beginning.
    assert next_message(replace(RECORD, ended_at=60 * SECOND), "store").state == "firing"


def test_the_body_of_a_webhook_is_the_message_as_json() -> None:
    assert json.loads(next_message(RECORD, "postgresql://db/shop").json()) == {
        "id": "a1-1",
        "alert_id": "a1",
        "number": 1,
        "alert": "ops",
        "state": "firing",
        "condition": "queue_lag(mail) > 60",
        "subject": "mail",
        "value": 93.2,
        "text": "jobs of queue 'mail' wait 93 s for a slot, more than 60 s",
        "started_at": "1970-01-01T00:00:00Z",
        "ended_at": None,
        "store": "postgresql://db/shop",
    }


@pytest.mark.parametrize(
    ("condition", "subject", "value", "text"),
    [
        ("waiting > 10000", "mail", 12345, "12,345 due jobs wait in queue 'mail', more than 10,000"),
        ("failures > 10/m", "", 12, "12 jobs failed within 1m, more than 10"),
        ("failures(pay) > 0/90s", "pay", 1, "1 job of task 'pay' failed within 90s, more than 0"),
        ("node_lost", "blue", None, "node 'blue' was lost; other nodes take over its jobs"),
        ("of > a newer release", "blue", None, "of > a newer release: blue"),
    ],
)
def test_the_text_says_what_holds(condition: str, subject: str, value: float | None, text: str) -> None:
    assert replace(RECORD, condition=condition, subject=subject, value=value).text == text
