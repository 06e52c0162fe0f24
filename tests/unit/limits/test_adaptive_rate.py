"""AdaptiveRate: it finds a limit that nobody told it, follows it when it changes, and is refused seldom."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from headgate import AdaptiveRate, StrictRate
from headgate.clock import FARTHEST, SECOND
from headgate.errors import CostExceedsLimit, DeclarationError
from headgate.limits.adaptive_rate import KEPT, PARTS, Aimd, AimdState
from headgate.limits.kinds import spelled_limit

MINUTE = 60 * SECOND
NOON = 1_767_268_800 * SECOND
LATENCY = SECOND // 5


@dataclass
class Server:
    """Accepts `hidden(now)` requests in any minute, and tells a refused one when the next may come."""

    hidden: Callable[[int], int]
    accepted: deque[int] = field(default_factory=deque)

    def refuses(self, now: int) -> int | None:
        """Return for how long it refuses a request that comes now; None: it is accepted."""
        while self.accepted and self.accepted[0] <= now - MINUTE:
            self.accepted.popleft()
        most = self.hidden(now)
        if len(self.accepted) < most:
            self.accepted.append(now)
            return None
        return self.accepted[len(self.accepted) - most] + MINUTE - now


@dataclass
class Run:
    """What became of the requests of a saturated key: when each was accepted, and when each was refused."""

    accepted: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    rates: list[tuple[int, float]] = field(default_factory=list)

    def per_minute(self, begin: int, end: int) -> float:
        return sum(begin <= at < end for at in self.accepted) * MINUTE / (end - begin)

    def refused_share(self, begin: int, end: int) -> float:
        refused = sum(begin <= at < end for at in self.refused)
        return refused / max(1, refused + sum(begin <= at < end for at in self.accepted))


def play(rule: Aimd, server: Server, minutes: int, *, stores: bool = False) -> Run:
    """Start requests as fast as the rule lets them go; answers come a fifth of a second later."""
    run, state, now, closed_until = Run(), None, NOON, 0
    answers: deque[tuple[int, int, int]] = deque()
    while now < NOON + minutes * MINUTE:
        if stores and state is not None:
            # Another machine reads what this one has stored.
            state = rule.load(rule.dump(state), now)
        opens_at, after = rule.take(state, max(now, closed_until))
        if answers and answers[0][0] <= opens_at:
            now, charged_at, retry_after = answers.popleft()
            state = rule.refused(state, charged_at, now)
            closed_until = max(closed_until, now + retry_after)
            continue
        if opens_at > now:
            now = opens_at
            continue
        state = after
        refused_for = server.refuses(now)
        if refused_for is None:
            run.accepted.append(now)
        else:
            run.refused.append(now)
            answers.append((now + LATENCY, now, refused_for))
        run.rates.append((now, state.rate / PARTS))
    return run


def aimd(*args: Any, **options: Any) -> Aimd:
    return AdaptiveRate(*args, **options).rule


@pytest.mark.parametrize(("hidden", "most_refused"), [(20, 0.15), (60, 0.02), (120, 0.01), (400, 0.005)])
def test_it_finds_a_hidden_limit_and_stays_near_it(hidden: int, most_refused: float) -> None:
    """At least 75 % of what the server allows; where that is a tenth of the maximum or more, at most 2 % refused."""
    run = play(aimd("600/m", min="6/m"), Server(lambda _: hidden), 180)
    begin, end = NOON + 60 * MINUTE, NOON + 180 * MINUTE
    assert 0.75 * hidden <= run.per_minute(begin, end) <= hidden
    assert run.refused_share(begin, end) <= most_refused


def test_it_follows_a_hidden_limit_that_changes() -> None:
    """An hour at 120, one at 30, two at 240: within 15 minutes of a fall, and 30 of a rise, it is near the new one."""

    def hidden(now: int) -> int:
        hours = (now - NOON) // (60 * MINUTE)
        return (120, 30, 240, 240)[min(3, hours)]

    run = play(aimd("600/m", min="6/m"), Server(hidden), 240)
    for begin, end, most in ((30, 60, 120), (75, 120, 30), (150, 240, 240)):
        assert 0.75 * most <= run.per_minute(NOON + begin * MINUTE, NOON + end * MINUTE) <= most
    assert run.refused_share(NOON, NOON + 240 * MINUTE) <= 0.02
    assert run.refused_share(NOON + 60 * MINUTE, NOON + 75 * MINUTE) <= 0.10, "the fall itself"


def test_what_one_machine_has_found_another_continues_with() -> None:
    rule, hidden = aimd("600/m", min="6/m"), Server(lambda _: 90)
    alone = play(rule, hidden, 60)
    assert play(rule, Server(lambda _: 90), 60, stores=True) == alone


def test_a_server_that_refuses_nothing_gets_the_maximum() -> None:
    run = play(aimd("60/m", min="6/m", climb=600), Server(lambda _: 1000), 60)
    assert run.rates[-1][1] == 60
    assert run.per_minute(NOON + 20 * MINUTE, NOON + 60 * MINUTE) == pytest.approx(60, rel=0.01)


def test_a_server_that_refuses_everything_gets_the_minimum() -> None:
    rule = aimd("600/m", min="6/m", start="600/m", climb="1d")
    state: AimdState | None = None
    for second in range(0, 600, 10):
        now = NOON + second * SECOND
        _, state = rule.take(state, now)
        state = rule.refused(state, now, now)
    assert rule.snapshot(state, NOON).present == "6/m"
    assert rule.low == 6 * PARTS


# ------------------------------------------------------------------------------------------------------ the rule


def test_refusals_of_starts_before_a_decrease_are_one_refusal() -> None:
    rule = aimd("600/m", start="100/m", burst=5)
    state: AimdState | None = None
    for _ in range(5):
        _, state = rule.take(state, NOON)
    for answered in range(5):
        state = rule.refused(state, NOON, NOON + LATENCY + answered)
    assert rule.snapshot(state, NOON).present == "70/m"
    later = NOON + 10 * SECOND
    _, state = rule.take(state, later)
    assert rule.refused(state, later, later + LATENCY).rate < 70 * PARTS


def test_a_decrease_gives_nothing_back() -> None:
    """The debt, counted in starts, stays: five that were used stay used, at a slower rate."""
    rule = aimd("600/m", start="100/m", burst=5)
    state: AimdState | None = None
    for _ in range(5):
        _, state = rule.take(state, NOON)
    state = rule.refused(state, NOON, NOON)
    assert rule.snapshot(state, NOON).available == 0
    assert rule.take(state, NOON)[0] == pytest.approx(NOON + MINUTE / 70, abs=2)


def test_a_rate_that_is_not_used_does_not_grow() -> None:
    rule = aimd("600/m", start="60/m")
    state: AimdState | None = None
    for minute in range(120):
        _, state = rule.take(state, NOON + minute * MINUTE)
    assert rule.snapshot(state, NOON).present == "60/m"
    _, used = rule.take(state, NOON + 119 * MINUTE + SECOND)
    assert used.rate > 60 * PARTS


def test_a_closed_time_is_no_use() -> None:
    rule = aimd("600/m", start="60/m")
    _, state = rule.take(None, NOON)
    state = rule.refused(state, NOON, NOON)
    _, after = rule.take(state, NOON + 30 * SECOND)
    assert rule.snapshot(after, NOON).present == "42/m"


def test_a_changed_maximum_keeps_what_was_found_within_the_new_bounds() -> None:
    rule, lower, other = aimd("600/m", start="300/m"), aimd("100/m"), aimd("36000/h", min="600/h")
    _, state = rule.take(None, NOON)
    assert lower.snapshot(lower.load(rule.dump(state), NOON), NOON).present == "100/m"
    assert other.snapshot(other.load(rule.dump(state), NOON), NOON).present == "18000/h"
    assert lower.take(lower.load(rule.dump(state), NOON), NOON)[0] > NOON, "the start before it still counts"


def test_a_state_of_another_kind_of_rule_grants_nothing_at_first() -> None:
    other, rule = StrictRate("5/m").rule, aimd("60/m", start="6/m")
    _, state = other.take(None, NOON)
    assert rule.take(rule.load(other.dump(state), NOON), NOON)[0] == NOON + 10 * SECOND


def test_a_found_rate_is_kept_for_a_week() -> None:
    rule = aimd("60/m")
    _, state = rule.take(None, NOON)
    assert rule.idle_at(state) >= NOON + KEPT


def test_it_can_be_set_as_text_and_keeps_its_other_numbers() -> None:
    declared = aimd("600/m", min="60/m", climb=60, backoff=0.5, burst=3)
    new = spelled_limit(declared, "120/m").rule
    assert isinstance(new, Aimd)
    assert (new.describe(), new.climb, new.kept) == ("adaptive, 60/m to 120/m burst 3", MINUTE, 50)
    assert spelled_limit(declared, "30/m").rule.describe() == "adaptive, 30/m to 30/m burst 3"
    assert spelled_limit(StrictRate("5/m").rule, "50/m", kind="adaptive").rule.describe() == "adaptive, 0.5/m to 50/m"


def test_the_lowest_rate_of_a_long_period_stays_above_zero_in_a_short_one() -> None:
    """The fault: it was none at all, and the next start divided by zero."""
    new = spelled_limit(aimd("1/d"), "10/s").rule
    assert isinstance(new, Aimd)
    assert new.low == 1
    assert new.take(None, NOON)[0] == NOON


def test_a_debt_is_bounded_when_the_rate_becomes_slower() -> None:
    fast, slow = aimd("1000/s", min="1/d", start="1000/s", burst=1000), aimd("1/d", min="1/9d", start="1/9d")
    _, state = fast.take(None, NOON, 1000)
    for _ in range(1000):
        _, state = fast.take(state, NOON, 1000)
    hundred_years = NOON + FARTHEST
    assert slow.full_at(slow.load(fast.dump(state), NOON)) == hundred_years
    for number in range(100):
        state = fast.refused(state, NOON + number, NOON + number)
    assert NOON < fast.full_at(state) <= hundred_years + 100
    # A settled cost is unbounded.
    assert fast.full_at(fast.amend(state, NOON, 1, NOON, 10**30)) < 1 << 62


def test_a_cost_above_the_burst_can_never_go() -> None:
    with pytest.raises(CostExceedsLimit, match="raise its burst"):
        aimd("600/m", burst=3).take(None, NOON, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min": "700/m"}, "cannot start at 700/m: min, start and maximum must be in this order"),
        ({"min": "10/m", "start": "5/m"}, "must be in this order"),
        ({"start": "700/m"}, "must be in this order"),
        ({"min": 10}, 'min=10 of an adaptive rate is not a rate; write min="10/m"'),
        ({"backoff": 1.0}, "backoff=1.0 of an adaptive rate must be from 0.1 to 0.99"),
        ({"backoff": 0}, "backoff=0 of an adaptive rate"),
        ({"burst": 0}, "an adaptive rate: burst=0 must be a whole number, at least 1"),
        ({"climb": 0}, "climb"),
        ({"min": "1/10000000d"}, "less than a millionth|hundred years"),
        ({"burst": 10**10}, "a burst of 10000000000 takes .* lower the burst or raise its min"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        AdaptiveRate("600/m", **options)
