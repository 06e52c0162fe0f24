"""A bucket store as plain Python: the rules themselves, and the little that a store adds to them."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec.structs import replace

from headgate.limits.adaptive_rate import KEPT, Aimd
from headgate.limits.bucket_store import Taken
from headgate.limits.dynamic_window import SharedCounter
from headgate.limits.fixed_window import WindowCounter
from headgate.limits.leases import Leases
from headgate.limits.limit import AnyRule
from headgate.limits.rate_limit import START_EMPTY_KEPT, Gcra
from headgate.limits.rule import Snapshot
from headgate.limits.sliding_window import SliceCounter


class Answer(NamedTuple):
    over_at: int
    taken: Taken
    before: Any
    after: Any


class BucketModel:
    """One bucket. Each call is given the clock's time, which may go back, and the rule it is judged by.

    `key` matters to rules whose keys share a bucket; what was answered under an id is each key's own.
    """

    def __init__(self) -> None:
        self.key = ""
        self.clock = 0
        self.answers: dict[tuple[str, str], Answer] = {}
        self.closed: dict[str, int] = {}
        self._forget()

    def take(self, rule: AnyRule, clock: int, cost: int, count: int, id: str | None) -> Taken:
        state, now, is_unsaved = self._look(rule, clock)
        if id is not None and (known := self._answer(id, now)):
            if is_unsaved:
                self._save(rule, state, now)
            return known.taken
        asked, granted = self._asked(rule), 0
        opens_at, after = asked.take(state, self._earliest(now), cost)
        while opens_at <= now and granted < count:
            state, granted = after, granted + 1
            opens_at, after = asked.take(state, now, cost)
        taken = self._taken(rule, granted, opens_at, now, state)
        if granted or is_unsaved:
            self._save(rule, state, now)
        if granted and id is not None:
            self.answers[self.key, id] = Answer(now + rule.period, taken, None, None)
        return taken

    def reserve(self, rule: AnyRule, clock: int, cost: int, id: str) -> Taken:
        before, now, is_unsaved = self._look(rule, clock)
        if known := self._answer(id, now):
            if is_unsaved:
                self._save(rule, before, now)
            slot = known.taken.opens_at
            return self._taken(rule, int(slot <= now), slot, now, before)
        opens_at, after = self._asked(rule).take(before, self._earliest(now), cost)
        opens_at = max(opens_at, now)
        taken = self._taken(rule, int(opens_at <= now), opens_at, now, after)
        self._save(rule, after, now)
        self.answers[self.key, id] = Answer(opens_at + rule.period, taken, before, after)
        return taken

    def cancel(self, rule: AnyRule, clock: int, id: str) -> bool:
        state, now, is_unsaved = self._look(rule, clock)
        known = self._answer(id, now)
        if state is None or not known or known.taken.opens_at <= now or known.after != state:
            if is_unsaved:
                self._save(rule, state, now)
            return False
        if known.before is None:
            self._forget()
        else:
            self._save(rule, known.before, now)
        del self.answers[self.key, id]
        return True

    def amend(self, rule: AnyRule, clock: int, charged_at: int, cost: int, started_at: int, actual: int) -> None:
        state, now, _ = self._look(rule, clock)
        asked = self._asked(rule)
        if state is None:
            after = asked.amend_forgotten(charged_at, started_at, actual)
        else:
            after = asked.amend(state, charged_at, cost, started_at, actual)
        if after is not None:
            self._save(rule, after, now)

    def snapshot(self, rule: AnyRule, clock: int) -> Snapshot:
        state, now, _ = self._look(rule, clock)
        snapshot: Snapshot = self._asked(rule).snapshot(state, now)
        if (earliest := self._earliest(now)) > now:
            return replace(snapshot, available=0, opens_at=self._asked(rule).snapshot(state, earliest).opens_at)
        return snapshot

    def penalize(self, rule: AnyRule, clock: int, closed_for: int) -> None:
        state, now, is_unsaved = self._look(rule, clock)
        if now + closed_for > self._earliest(now):
            # A penalty of nothing closes nothing, also where the clock goes back afterwards.
            self.closed[self.key] = now + closed_for
        if is_unsaved:
            self._save(rule, state, now)

    def refuse(self, rule: AnyRule, clock: int, charged_at: int | None) -> None:
        state, now, is_unsaved = self._look(rule, clock)
        if charged_at is not None or self._earliest(now) <= now:
            self._save(rule, rule.refused(state, now if charged_at is None else charged_at, now), now)
        elif is_unsaved:
            self._save(rule, state, now)

    def reset(self) -> None:
        self._forget()
        self.closed.pop(self.key, None)
        self.answers = {place: answer for place, answer in self.answers.items() if place[0] != self.key}

    def _forget(self) -> None:
        self.state: Any = None
        self.written_under: AnyRule | None = None
        self.latest = self.offset = 0

    def _look(self, rule: AnyRule, clock: int) -> tuple[Any, int, bool]:
        """The state under this rule, what time it is for this bucket, and whether that has to be written down."""
        self.clock = clock
        now = max(clock + self.offset, self.latest)
        before = self.written_under
        if self.state is None or before is None:
            return None, now, False
        is_unsaved = clock + self.offset < now or _as_stored(before) != _as_stored(rule)
        return (rule.load(before.dump(self.state), now) if is_unsaved else self.state), now, is_unsaved

    def _save(self, rule: AnyRule, state: Any, now: int) -> None:
        self.state, self.written_under, self.latest = state, rule, now
        self.offset = now - self.clock

    def _earliest(self, now: int) -> int:
        return max(now, self.closed.get(self.key, 0))

    def _answer(self, id: str, now: int) -> Answer | None:
        known = self.answers.get((self.key, id))
        return known if known is not None and known.over_at > now else None

    def _asked(self, rule: AnyRule) -> Any:
        return rule.for_key(self.key) if rule.shares_state else rule

    def _taken(self, rule: AnyRule, granted: int, opens_at: int, now: int, state: Any) -> Taken:
        full_at = rule.idle_at(state) if state else 0
        if isinstance(rule, Gcra) and rule.start_empty:
            full_at -= START_EMPTY_KEPT
        if isinstance(rule, Aimd) and state:
            full_at -= KEPT
        if isinstance(rule, Leases) and state:
            full_at = max(state.ends, default=0)
        earliest = self._earliest(now)
        available = 0 if earliest > now else self._asked(rule).snapshot(state, now).available
        return Taken(granted, opens_at, now, available, max(earliest, full_at))


def _as_stored(rule: AnyRule) -> tuple[object, ...]:
    """What a stored state says of its rule: two rules of which it says the same read each other's."""
    match rule:
        case Gcra():
            return (rule.kind, rule.count, rule.period)
        case WindowCounter():
            return (rule.kind, rule.period)
        case SliceCounter() | SharedCounter():
            return (rule.kind, rule.slice, rule.slices)
        case Aimd():
            return (rule.kind, rule.period, rule.low, rule.high)
        case _:
            return (rule.kind,)
