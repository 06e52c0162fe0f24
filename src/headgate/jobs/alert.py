"""Alerts: the conditions that an app watches, and the messages that say that one holds or has ended. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

import msgspec

from headgate.arguments import duration_in
from headgate.clock import SECOND, to_datetime
from headgate.errors import DeclarationError
from headgate.plural import counted
from headgate.suggestion import did_you_mean
from headgate.views import view_of

ConditionKind = Literal["queue_lag", "waiting", "failures", "node_lost", "schedule_overdue", "limit_unavailable"]

AlertState = Literal["firing", "resolved", "test"]

HOLDS_FOR = 60 * SECOND
"""How long a condition must not have held for its alert to end, so that one that comes and goes is one alert."""

LOST_FOR = 600 * SECOND
"""How long a lost node is an alert: nothing ends that condition."""

LONGEST_PERIOD = 86400 * SECOND
"""The longest period of a rate of failures (microseconds). A day is counted in hours, the longest steps."""

_EXAMPLES: dict[ConditionKind, str] = {
    "queue_lag": "queue_lag > 60",
    "waiting": "waiting > 10000",
    "failures": "failures > 10/m",
    "node_lost": "node_lost",
    "schedule_overdue": "schedule_overdue",
    "limit_unavailable": "limit_unavailable",
}
"""The kinds of conditions, each with an example."""

_SUBJECTS: dict[ConditionKind, str] = {"queue_lag": "queue", "waiting": "queue", "failures": "task"}
"""The kinds with a threshold, and what each may name."""

_CONDITION = re.compile(r"\s*(?P<kind>\w+)\s*(?:\(\s*(?P<subject>[^()\s]+)\s*\))?\s*(?:>\s*(?P<threshold>\S+))?\s*")
_RATE = re.compile(r"(?P<count>[0-9]{1,12})/(?P<period>[0-9a-z.]*[a-z])")
_COUNT = re.compile(r"[0-9]{1,12}")


class Reading(NamedTuple):
    """The reading for one subject: its value in the unit of the threshold; None for a kind without one."""

    subject: str
    value: float | None = None


class Condition(msgspec.Struct, frozen=True):
    """The condition of an alert: a kind, perhaps one subject, and the threshold that a value has to exceed.

    The threshold of a lag is in seconds, that of failures a count in `period` microseconds.
    """

    kind: ConditionKind
    subject: str | None = None
    threshold: float | None = None
    period: int | None = None

    def __str__(self) -> str:
        named = self.kind if self.subject is None else f"{self.kind}({self.subject})"
        if self.threshold is None:
            return named
        per = "" if self.period is None else f"/{_shown_period(self.period)}"
        # Neither 1e+06 nor 1e-06, which is no condition.
        return f"{named} > {f'{self.threshold:.6f}'.rstrip('0').rstrip('.')}{per}"

    def holding(self, readings: Sequence[Reading]) -> list[Reading]:
        """Return the readings for which the condition holds."""
        return [
            reading
            for reading in readings
            if (self.subject is None or reading.subject == self.subject)
            and (self.threshold is None or (reading.value is not None and reading.value > self.threshold))
        ]

    def text(self, subject: str, value: float | None) -> str:
        """Return a sentence that says that the condition holds."""
        match self.kind:
            case "queue_lag":
                lag, most = _shown(value), _shown(self.threshold)
                return f"jobs of queue {subject!r} wait {lag} s for a slot, more than {most} s"
            case "waiting":
                return f"{_shown(value)} due jobs wait in queue {subject!r}, more than {_shown(self.threshold)}"
            case "failures":
                failed = counted(int(value or 0), "job") + (f" of task {subject!r}" if subject else "")
                period = _shown_period(self.period or 0)
                within = f"1{period}" if period.isalpha() else period
                return f"{failed} failed within {within}, more than {_shown(self.threshold)}"
            case "node_lost":
                return f"node {subject!r} was lost; other nodes take over its jobs"
            case "schedule_overdue":
                return f"schedule {subject!r} is overdue: no node has enqueued its jobs for a minute"
            case "limit_unavailable":
                return f"the store of limit {subject!r} does not answer"


def parse_condition(text: object, where: str) -> Condition:
    """Return the condition of a text such as "queue_lag(mail) > 60". Raises DeclarationError with what to write."""
    examples = ", ".join(f'"{example}"' for example in _EXAMPLES.values())
    found = _CONDITION.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        if isinstance(text, str) and re.search("[<=]", text):
            raise DeclarationError(f"{where}: {text!r} compares in another way than by `>`; there are {examples}")
        raise DeclarationError(f"{where}: {text!r:.200} is not a condition; there are {examples}")
    kind: ConditionKind
    for kind in _EXAMPLES:
        if kind == found["kind"]:
            break
    else:
        hint = did_you_mean(found["kind"], _EXAMPLES)
        raise DeclarationError(f"{where}: there is no condition {found['kind']!r}{hint} There are {examples}")
    subject, threshold = found["subject"], found["threshold"]
    if kind not in _SUBJECTS:
        if subject is not None or threshold is not None:
            raise DeclarationError(f"{where}: {text!r} takes no name and no threshold; write {kind!r}")
        return Condition(kind)
    instead = f"write for example {_EXAMPLES[kind]!r}"
    if subject is not None:
        instead += f", or for one {_SUBJECTS[kind]} {_EXAMPLES[kind].replace(kind, f'{kind}({subject})')!r}"
    if threshold is None:
        raise DeclarationError(f"{where}: {text!r} needs a threshold; {instead}")
    match kind:
        case "queue_lag":
            lag = duration_in(threshold)
            if lag is None:
                raise DeclarationError(f"{where}: {threshold!r} in {text!r} is no number of seconds; {instead}")
            return Condition(kind, subject, lag / SECOND)
        case "failures":
            rate = _RATE.fullmatch(threshold)
            given = None if rate is None else rate["period"]
            period = None if given is None else duration_in(f"1{given}" if given[0].isalpha() else given)
            if rate is None or period is None:
                raise DeclarationError(f"{where}: {threshold!r} in {text!r} is no count in a time; {instead}")
            if not 10 * SECOND <= period <= LONGEST_PERIOD:
                raise DeclarationError(f"{where}: {text!r} counts over {given}; a period is from 10s to 1d")
            return Condition(kind, subject, int(rate["count"]), period)
        case _:
            if _COUNT.fullmatch(threshold) is None:
                raise DeclarationError(f"{where}: {threshold!r} in {text!r} is no number of jobs; {instead}")
            return Condition(kind, subject, int(threshold))


def _shown(value: float | None) -> str:
    """Return a number as people write it: 60, 1,200 or 3.5."""
    return f"{value or 0:,.0f}" if (value or 0) == int(value or 0) or (value or 0) >= 10 else f"{value:.1f}"


def _shown_period(period: int) -> str:
    """Return a period as in a rate: m, 10m, 90s."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        many, rest = divmod(period, length * SECOND)
        if not rest:
            return unit if many == 1 else f"{many}{unit}"
    return f"{period / SECOND:g}s"


# ----------------------------------------------------------------------------------------------------- messages


class HeldCondition(NamedTuple):
    """A condition of an alert that holds for a subject; `id` is for the alert that begins if it is new."""

    id: str
    alert: str
    condition: str
    subject: str
    value: float | None


class AlertRecord(msgspec.Struct, frozen=True, array_like=True):
    """An alert that has begun, as it is stored; instants are wall microseconds.

    The condition was last seen to hold at `seen_at`. `sent` messages were delivered; the next one is due at `send_at`,
    and was tried `tries` times without success, the last time with `error`.
    """

    id: str
    alert: str
    condition: str
    subject: str
    value: float | None
    started_at: int
    seen_at: int
    ended_at: int | None
    sent: int
    sent_at: int | None
    tries: int
    send_at: int
    error: str | None

    @property
    def next_state(self) -> AlertState:
        """The state in the next message. An alert's end is sent only after its beginning."""
        return "resolved" if self.ended_at is not None and self.sent else "firing"

    @property
    def text(self) -> str:
        """A sentence that says that the condition holds."""
        try:
            condition = parse_condition(self.condition, "a stored alert")
        except DeclarationError:
            # A newer release has stored it.
            return f"{self.condition}: {self.subject}"
        return condition.text(self.subject, self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertMessage:
    """A message to the target of an alert; a webhook gets the same fields as a JSON object.

    The `state` is "firing", "resolved", or "test" for `headgate alerts test`. A message may arrive twice, then with the
    same `id`. All messages of one alert, from its beginning to its end, have the same `alert_id`; `number` counts
    the messages that are known to be delivered, from 1. `alert` is the name of the declaration, `subject` the queue,
    task, node, schedule or limit that `condition` is about ("": all tasks), `value` what was measured last, in the unit
    of the threshold (None: the condition has none). `text` says the same in a sentence. The alert began at `started_at`
    and ended at `ended_at` (None: it lasts). `store` is where the jobs are, without a password.
    """

    id: str
    alert_id: str
    number: int
    alert: str
    state: AlertState
    condition: str
    subject: str
    value: float | None
    text: str
    started_at: datetime
    ended_at: datetime | None
    store: str

    def json(self) -> bytes:
        """Return the body of the request to a webhook."""
        return msgspec.json.encode(self)


def next_message(record: AlertRecord, store: str) -> AlertMessage:
    """Return the message that is due. Its id is the same each time it is tried, on every node."""
    state = record.next_state
    number = record.sent + 1
    return view_of(
        AlertMessage,
        record,
        # A message that the alert lasts may have arrived although its reply was lost; the end must differ from it.
        id=f"{record.id}-{'end' if state == 'resolved' else number}",
        alert_id=record.id,
        number=number,
        state=state,
        text=f"resolved: {record.text}" if state == "resolved" else record.text,
        store=store,
    )


def message_for_test(alert: str, conditions: Sequence[Condition], *, id: str, now: int, store: str) -> AlertMessage:
    """Return a message that shows whether the target of an alert works."""
    return AlertMessage(
        id=f"{id}-1",
        alert_id=id,
        number=1,
        alert=alert,
        state="test",
        condition=str(conditions[0]),
        subject="",
        value=None,
        text=f"a test of alert {alert!r}: {', '.join(map(str, conditions))}",
        started_at=to_datetime(now),
        ended_at=None,
        store=store,
    )
