"""The result: each promise checked against the calls of the API and the job store. Pure: records in, result out."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headgate.admin.audit import highest_in_window
from headgate.cli.demonstration.api import RecordedCall
from headgate.cli.output import percentile
from headgate.clock import SECOND
from headgate.plural import counted

QUIET_BOUND = 1.0
"""The upper bound of the 99th percentile of the quiet tenants' waits, in seconds."""

SHARE_BOUND = 0.95
"""The share of its budget that the noisy tenant must use, in a run of six or seven windows."""


@dataclass(frozen=True, slots=True)
class EnqueuedCall:
    """A job whose enqueue returned; `at` is when it was called, in microseconds since boot."""

    tenant: str
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRecords:
    """All records of a run. Instants and durations are microseconds, instants since boot.

    `alive`: the intervals with a live worker. `began` and `ended` bound the time over which the noisy tenant's share is
    measured. `states` and `lost` (attempts that ended with their process) come from the store. `endings` are job ids
    in the order in which workers received the events of recorded endings.
    """

    calls: int
    window: int
    margin: int
    noisy: str
    enqueued: Mapping[str, EnqueuedCall]
    ledger: Sequence[RecordedCall]
    states: Mapping[str, str]
    lost: Mapping[str, int]
    endings: Sequence[str]
    alive: Sequence[tuple[int, int]]
    began: int
    ended: int
    exit_code: int


@dataclass(frozen=True, slots=True)
class PromiseCheck:
    """One promise: the measured value, and whether it is kept."""

    promise: str
    kept: bool
    measured: float
    bound: str
    detail: str


@dataclass(frozen=True, slots=True)
class DemoResult:
    """All promises, and whether all were kept."""

    kept: bool
    promises: Sequence[PromiseCheck]


def judge(evidence: DemoRecords) -> DemoResult:
    """Return the result of these records."""
    promises = (
        _nothing_lost(evidence),
        _never_over(evidence),
        _quiet_not_blocked(evidence),
        _full_use(evidence),
        _finished_once(evidence),
        _stops_cleanly(evidence),
    )
    return DemoResult(all(promise.kept for promise in promises), promises)


def _nothing_lost(evidence: DemoRecords) -> PromiseCheck:
    called = {call.job for call in evidence.ledger if call.status == 200}
    states = Counter(evidence.states.get(id, "missing") for id in evidence.enqueued)
    lost = [
        id
        for id in evidence.enqueued
        if evidence.states.get(id) not in ("waiting", "running", "succeeded")
        or (evidence.states[id] == "succeeded" and id not in called)
    ]
    counted = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return PromiseCheck("jobs lost", not lost, len(lost), "0", f"{len(evidence.enqueued)} enqueued: {counted}")


def _never_over(evidence: DemoRecords) -> PromiseCheck:
    refused = sum(call.status == 429 for call in evidence.ledger)
    most = most_in_a_window(evidence.ledger, evidence.window)
    return PromiseCheck(
        "calls answered 429",
        refused == 0 and most <= evidence.calls,
        refused,
        "0",
        f"{counted(len(evidence.ledger), 'call')}; most of one tenant in any {evidence.window / SECOND:g} s: "
        f"{most} of {evidence.calls}",
    )


def _quiet_not_blocked(evidence: DemoRecords) -> PromiseCheck:
    waits = sorted(_quiet_waits(evidence))
    p99 = percentile(waits, 99)
    return PromiseCheck(
        "quiet tenants' wait, p99, seconds",
        p99 <= QUIET_BOUND,
        round(p99, 4),
        f"<= {QUIET_BOUND:g}",
        f"enqueue to call, {counted(len(waits), 'job')}, less the time without a worker; "
        f"p50 {percentile(waits, 50):.3f}, longest {waits[-1] if waits else 0:.3f}",
    )


def _full_use(evidence: DemoRecords) -> PromiseCheck:
    made = sum(call.tenant == evidence.noisy and evidence.began <= call.at < evidence.ended for call in evidence.ledger)
    allowed = ideal_starts(
        evidence.calls, evidence.window + evidence.margin, evidence.alive, evidence.began, evidence.ended
    )
    share = made / allowed if allowed else 0.0
    return PromiseCheck(
        "share of the noisy tenant's budget used",
        share >= SHARE_BOUND,
        round(share, 4),
        f">= {SHARE_BOUND:g}",
        f"{counted(made, 'call')} of {allowed} that {evidence.calls} per "
        f"{(evidence.window + evidence.margin) / SECOND:g} s "
        "allows while a worker was alive",
    )


def _finished_once(evidence: DemoRecords) -> PromiseCheck:
    calls = Counter(call.job for call in evidence.ledger if call.status == 200)
    unexplained = {id for id, count in calls.items() if count > 1 + evidence.lost.get(id, 0)}
    twice = {id for id, count in Counter(evidence.endings).items() if count > 1}
    again = sum(count > 1 for count in calls.values())
    return PromiseCheck(
        "jobs finished twice",
        not twice | unexplained,
        len(twice | unexplained),
        "0",
        f"in the handler at the kill -9, so the API was called again: {counted(again, 'job')}, "
        "run at least once, finished once, within the limit",
    )


def _stops_cleanly(evidence: DemoRecords) -> PromiseCheck:
    return PromiseCheck(
        "exit code of the worker after SIGTERM", evidence.exit_code == 0, evidence.exit_code, "0", "drained, then ended"
    )


# ------------------------------------------------------------------------------------------------ measures


def most_in_a_window(calls: Iterable[RecordedCall], window: int) -> int:
    """Return the highest number of calls of one tenant in any half-open window of that length."""
    by_tenant: dict[str, list[int]] = {}
    for call in calls:
        by_tenant.setdefault(call.tenant, []).append(call.at)
    return max(
        (highest_in_window(((at, 1) for at in sorted(instants)), window) for instants in by_tenant.values()), default=0
    )


def ideal_starts(count: int, period: int, alive: Sequence[tuple[int, int]], began: int, ended: int) -> int:
    """Return how many starts fit, if each goes at the first instant that the rule allows and with a worker alive."""
    latest: deque[int] = deque(maxlen=count)
    total = 0
    for since, until in alive:
        at = max(since, began)
        while True:
            if len(latest) == count:
                at = max(at, latest[0] + period)
            if at >= min(until, ended):
                break
            latest.append(at)
            total += 1
    return total


def _quiet_waits(evidence: DemoRecords) -> list[float]:
    """Return the seconds from enqueue to the first call, without those without a worker. A missing call still waits."""
    arrived: dict[str, int] = {}
    for call in evidence.ledger:
        arrived.setdefault(call.job, call.at)
    return [
        _with_worker(evidence.alive, job.at, arrived.get(id, evidence.ended)) / SECOND
        for id, job in evidence.enqueued.items()
        if job.tenant != evidence.noisy
    ]


def _with_worker(alive: Sequence[tuple[int, int]], since: int, until: int) -> int:
    return sum(max(0, min(until, to) - max(since, from_)) for from_, to in alive)
