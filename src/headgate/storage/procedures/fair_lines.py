"""The lines of fair queues during one claim: at which virtual time each lane comes, and so which lanes are visited.

Pure, and the same for every store. The rules of the order are in `headgate.limits.fair`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

import msgspec

from headgate.limits.fair import (
    PREFIX,
    STEP,
    TurnGroup,
    TurnLine,
    TurnOrder,
    first_virtual_time,
    returning_virtual_time,
)
from headgate.limits.limit import AnyRule
from headgate.storage.admission import FAIR_LANES, QUANTUM, RowId
from headgate.storage.procedures.claim_snapshot import LaneRow, TurnGroupRow


class _Taker(msgspec.Struct):
    """A lane in the count of how many jobs each would start."""

    place: int
    virtual_time: int
    step: int
    group: TurnGroup | None


class FairLines:
    """The lines of the fair queues that one claim reads, at one instant of limit time.

    `passed` is the highest virtual time at which a job of each queue has started.
    """

    def __init__(
        self, queues: Iterable[str], rules: Mapping[str, AnyRule], passed: Mapping[str, int], limit_now: int
    ) -> None:
        found = ((queue, rules.get(PREFIX + queue)) for queue in queues)
        self._orders = {queue: rule for queue, rule in found if isinstance(rule, TurnOrder)}
        self._passed = passed
        self.limit_now = limit_now
        # The groups of the lanes that may be visited, if keys have two levels.
        self._groups: dict[RowId, TurnGroup] = {}
        # The lowest virtual time in line of each queue, the highest so far, and the lanes that are not in line.
        self._lowest: dict[str, int] = {}
        self._highest: dict[str, int] = {}
        self._outside: Set[RowId] = frozenset()

    # --------------------------------------------------------------------------------------------- read

    def note_groups(self, rows: Iterable[TurnGroupRow]) -> None:
        """Note the virtual times of groups, as they are stored now."""
        for row in rows:
            known = self._groups.setdefault(row.id, TurnGroup(row.virtual_time))
            # One that was not in line keeps the virtual time with which it joins, if that is higher.
            known.virtual_time = max(known.virtual_time, row.virtual_time) if row.first is None else row.virtual_time
            known.first, known.last = row.first, row.last

    def cuts_groups(self, rows: Iterable[LaneRow], page: int) -> bool:
        """Whether there may be more lanes in line in the groups of these, or more groups."""
        read = Counter((row.queue, row.group_id, row.group_most) for row in rows if row.group_most)
        most_of_first: dict[str, int] = {}
        for queue, _, most in read:
            most_of_first[queue] = max(most, most_of_first.get(queue, 0))
        # The first group may have as many lanes as the page, unless not all groups were needed.
        are_all = all(most > page for most in most_of_first.values())
        return not are_all or any(count >= most for (_, _, most), count in read.items())

    # ------------------------------------------------------------------------------------------- choose

    def note_in_line(self, due: Iterable[LaneRow], behind: Iterable[LaneRow]) -> None:
        """Note the lowest virtual time in line of each queue, from the lanes in line, and the highest so far."""
        for row in due:
            time = row.virtual_time if row.group_id is None else self._groups[row.group_id].virtual_time
            if time is not None:
                self._lowest[row.queue] = min(time, self._lowest.get(row.queue, time))
        self._highest |= {row.queue: row.highest for row in behind if row.highest is not None}

    def sort(self, lanes: list[LaneRow], *, outside: Iterable[LaneRow], shares: Mapping[str, int]) -> None:
        """Sort lanes in the order of their virtual times; those of other queues come first, as they are.

        Of equal times, those of lanes `outside`, which are not in line, come first: they grow with the lowest in line.
        """
        if not self._orders:
            return
        self._outside = {row.id for row in outside}
        if not self._groups:
            lanes.sort(key=self._place)
            return
        self._enter_groups(lanes)
        planned = self._planned_times(lanes, shares)
        lanes.sort(key=lambda row: (planned[row.id], self._is_in_line(row), *self._place(row)))

    def mixed(self, rows: Iterable[LaneRow], shares: Mapping[str, int], width: int) -> list[LaneRow]:
        """Return the lanes for a claim that is so wide: a group leaves half of the visits to the groups after it."""
        first: list[LaneRow] = []
        rest: list[LaneRow] = []
        visits: Counter[RowId] = Counter()
        for row in rows:
            if row.group_id is not None:
                visits[row.group_id] += 1
            is_first = row.group_id is None or 2 * visits[row.group_id] <= width * shares.get(row.queue, 0)
            (first if is_first else rest).append(row)
        return [*first, *rest]

    def note_not_visited(self, rows: Iterable[LaneRow]) -> None:
        """Note lanes that the claim leaves in line: jobs of their groups may come before those of others."""
        for row in rows:
            if row.group_id is not None:
                self._groups[row.group_id].is_complete = False

    def quantum(self, row: LaneRow, share: int) -> int:
        """Return how many jobs a lane is likely to start in its turn, where its queue may start `share`."""
        most = -(-share // FAIR_LANES) if row.queue in self._orders else QUANTUM
        return max(1, min(most, row.waiting))

    # ------------------------------------------------------------------------------------------- decide

    def step(self, row: LaneRow) -> int:
        """Return by how much one start raises the virtual time of a lane in a fair queue; 0 in other queues."""
        order = self._orders.get(row.queue)
        if order is None:
            return 0
        return self._step_of_key(row, order) if order.weights and row.group_id is None else STEP

    def virtual_time(self, row: LaneRow) -> int:
        """Return the virtual time of a lane."""
        own, queue, group = row.virtual_time, row.queue, self.group(row)
        if own is not None and row.id not in self._outside:
            return own
        lowest = self._lowest.get(queue) if group is None else group.first
        passed = 0 if lowest or group else self._passed.get(queue, 0)
        if own is None:
            return first_virtual_time(lowest or max(self.limit_now, passed))
        # In an empty line those that wait for one bucket keep their order.
        highest = self._highest.get(queue) if lowest else row.last_behind
        return max(passed + passed % 2, returning_virtual_time(own, lowest, highest if group is None else group.last))

    def group(self, row: LaneRow) -> TurnGroup | None:
        """Return the group of a lane, if its keys have two levels."""
        return None if row.group_id is None else self._groups[row.group_id]

    def most_of_one(self, rows: Iterable[LaneRow], slots: int) -> int:
        """Return how many jobs a lane of a fair queue can start at most when these lanes fill so many slots."""
        if not self._orders:
            return 0
        groups = {id: TurnGroup(group.virtual_time, group.step) for id, group in self._groups.items()}
        line = TurnLine(
            _Taker(place, self.virtual_time(row), step, None if row.group_id is None else groups[row.group_id])
            for place, row in enumerate(rows)
            if (step := self.step(row))
        )
        starts: Counter[int] = Counter()
        for _ in range(slots if line.first else 0):
            starts[line.first.place] += 1
            line.start()
        return max(starts.values(), default=-1) + 1

    @property
    def hides_lanes(self) -> bool:
        """Whether a group has started all jobs that were read, and has more lanes in line."""
        return any(group.is_exhausted and not group.is_complete for group in self._groups.values())

    def written(self, moved: Iterable[LaneRow]) -> list[tuple[RowId, int]]:
        """Return the groups of lanes that have moved, with their virtual times."""
        ids = {row.group_id for row in moved if row.group_id is not None}
        return [(id, self._groups[id].virtual_time) for id in sorted(ids)]

    # ------------------------------------------------------------------------------------------ in parts

    def _step_of_key(self, row: LaneRow, order: TurnOrder) -> int:
        keys = [ref.key for ref in row.buckets if ref.limit == PREFIX + row.queue]
        return order.step(keys[0]) if keys else STEP

    def _place(self, row: LaneRow) -> tuple[int, bool, int]:
        if row.queue not in self._orders:
            return 0, False, 0
        return self.virtual_time(row), row.id not in self._outside, row.since or 0

    def _is_in_line(self, row: LaneRow) -> bool:
        """Whether the lane, or its group, is in line in a fair queue."""
        if row.queue not in self._orders:
            return False
        return row.id not in self._outside if row.group_id is None else self._groups[row.group_id].first is not None

    def _enter_groups(self, rows: Sequence[LaneRow]) -> None:
        """Complete what is known of the groups of these lanes."""
        read = Counter(row.group_id for row in rows if row.group_most)
        for row in rows:
            if row.group_id is None:
                continue
            group = self._groups[row.group_id]
            order = self._orders.get(row.queue)
            if order is not None:
                group.step = self._step_of_key(row, order)
            if group.first is None:
                # None of its lanes is in line.
                lowest = self._lowest.get(row.queue)
                highest = self._highest.get(row.queue) if lowest else row.last_behind
                group.virtual_time = returning_virtual_time(group.virtual_time, lowest, highest)
            if row.group_most and read[row.group_id] >= row.group_most:
                group.is_complete = False

    def _planned_times(self, rows: Sequence[LaneRow], shares: Mapping[str, int]) -> dict[RowId, int]:
        """Return the virtual time of the visit of each lane, if all before it in its group start a few jobs."""
        planned: dict[RowId, int] = {}
        turns: dict[RowId, int] = {}
        for row in sorted(rows, key=self._place):
            if row.group_id is None:
                planned[row.id] = self.virtual_time(row) if self.step(row) else 0
                continue
            group = self._groups[row.group_id]
            planned[row.id] = turns.setdefault(row.group_id, group.virtual_time)
            turns[row.group_id] += self.quantum(row, shares.get(row.queue, 0)) * group.step
        return planned
