"""A memory storage that is one of several: it starts the jobs of the keys that it owns, and hands keys over.

What it adds to a storage are the verbs that `docs/decisions` tells of in "Beyond one PostgreSQL". Each is one commit.
Every key has limits of its own here, named `rule:key`, because a claim names its rules by limit: that is how a key gets
its own time, and how the lanes of a key that is not owned are passed over. What has the key "" is nobody's.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, cast
from zlib import crc32

import msgspec
from msgspec.structs import replace

from headgate.clock import SECOND, Clock, Timer
from headgate.errors import StorageUnavailable
from headgate.jobs.audit import AuditRecord
from headgate.jobs.batch import NewBatch
from headgate.jobs.identity import job_number, job_text
from headgate.jobs.job import BucketRef, ClaimedJob, JobRecord, JobState, NewJob, RemoteCharge
from headgate.jobs.lifecycle import Ending
from headgate.jobs.limit_sets import LIMIT_SUBJECT
from headgate.limits.concurrency import Semaphore, load_permits
from headgate.limits.limit import AnyRule
from headgate.limits.rule import Rule
from headgate.storage.admission import BucketVisit
from headgate.storage.driver import NO_RULES
from headgate.storage.records import LIMIT_SET_LIVES, Amendment, Claim, Claimed, StartMove
from headgate.storage.sqlite.memory import MemoryStorage

BATCH = 10
"""How many waiting jobs depart together."""


class Place(msgspec.Struct, frozen=True):
    """Where a key is at home, as one shard knows it; what has the higher epoch is newer.

    The owner may be about to give it up `to` another. `ahead` is the key's time minus this shard's limit time, and
    `arrived` the number of the last batch of waiting jobs that came from each shard: both go where the key goes.
    """

    epoch: int
    owner: str
    to: str | None = None
    ahead: int = 0
    arrived: Mapping[str, int] = {}


class Parcel(msgspec.Struct, frozen=True):
    """What a key takes along: its time when it was packed, the states of its buckets, and what has arrived."""

    now: int
    states: Mapping[BucketRef, str | None]
    arrived: Mapping[str, int]


class DepartingJob(msgspec.Struct, frozen=True):
    """A waiting job on its way, with what it has behind it: the columns of its row and its rows in `attempt`."""

    new: NewJob
    attempt: int
    fence: int
    lost: int
    error: str | None
    attempts: Sequence[tuple[Any, ...]]


class Batch(msgspec.Struct, frozen=True):
    """Jobs of a key that wait at a shard that does not own it; the next batch of this shard has the next number."""

    source: str
    number: int
    jobs: Sequence[DepartingJob]


class KeyMoved(StorageUnavailable):
    """Another shard owns the key."""

    def __init__(self, key: str, place: Place) -> None:
        super().__init__(f"{key!r} is at {place.owner}, epoch {place.epoch}")
        self.key = key
        self.place = place


class KeyInTransit(StorageUnavailable):
    """The key, or the job, is between two shards; ask again in a moment."""


class InKeyTime(Rule[Any], frozen=True):
    """The rule of a key, asked in the limit time of a shard that the key's own time is `ahead` of."""

    real: Any
    ahead: int

    kind: ClassVar[str] = "in key time"
    family: ClassVar[str] = "in key time"

    @property
    def period(self) -> int:
        return int(self.real.period)

    @property
    def margin(self) -> int:
        return int(self.real.margin)

    def take(self, state: Any, now: int, cost: int = 1) -> tuple[int, Any]:
        opens_at, after = self.real.take(state, now + self.ahead, cost)
        return opens_at - self.ahead, after

    def grants(self, state: Any, now: int, most: int) -> int:
        return int(self.real.grants(state, now + self.ahead, most))

    def counts_until(self, charged_at: int) -> int:
        return int(self.real.counts_until(charged_at + self.ahead)) - self.ahead

    def amend(self, state: Any, charged_at: int, cost: int, started_at: int, actual: int) -> Any:
        return self.real.amend(state, charged_at + self.ahead, cost, started_at + self.ahead, actual)

    def check_cost(self, cost: int) -> None:
        self.real.check_cost(cost)

    def bound(self, window: int) -> int:
        return int(self.real.bound(window))

    def idle_at(self, state: Any) -> int:
        return int(self.real.idle_at(state)) - self.ahead

    def dump(self, state: Any) -> str:
        return str(self.real.dump(state))

    def load(self, stored: str, now: int) -> Any:
        return self.real.load(stored, now + self.ahead)

    def describe(self) -> str:
        return str(self.real.describe())


class _RecordInKeyTime:
    """A job's record, of which a node that has lost the reply of its claim makes the job as that gave it out."""

    def __init__(self, record: JobRecord, in_key_time: Callable[[ClaimedJob], ClaimedJob]) -> None:
        self._record = record
        self._in_key_time = in_key_time

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)

    def as_claimed(self) -> ClaimedJob:
        return self._in_key_time(self._record.as_claimed())


class _SteppedClock:
    """A clock whose monotonic time can be stepped; a step back stops it until the old time is reached."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = 0
        self.last = -math.inf

    def step(self, seconds: float) -> None:
        self._ahead += round(seconds * SECOND)

    def now(self) -> int:
        return self._clock.now()

    def monotonic(self) -> int:
        self.last = max(self.last, self._clock.monotonic() + self._ahead)
        return int(self.last)

    def boot_id(self) -> str:
        return self._clock.boot_id()

    def call_at(self, when: int, callback: Callable[[], object]) -> Timer:
        return self._clock.call_at(when, callback)


class Shard(MemoryStorage):
    """One database of several. `names` are all of them: a key that never moved is where its hash says."""

    def __init__(self, name: str, names: Sequence[str], clock: Clock) -> None:
        self._steps = _SteppedClock(clock)
        super().__init__(self._steps)
        # It may be set back until it is used.
        self._steps.last = -math.inf
        self.name = name
        self.clock = clock
        self._names = names
        self._homes: dict[str, Place] = {}
        self._departing: dict[str, tuple[int, frozenset[str]]] = {}
        self._last_batch: dict[str, int] = {}
        self._as_added: dict[str, NewJob] = {}

    def executor_of(self, key: str) -> Place:
        """Where this shard believes the key to be."""
        return self._homes.get(key) or Place(0, hash_home(key, self._names))

    def step(self, seconds: float) -> None:
        """Step the limit time, as after a failover; after a step back it waits until the old time is reached."""
        self._steps.step(seconds)

    # ------------------------------------------------------------------------------- what every storage does

    async def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> Mapping[str, str]:
        # A repeat of what is here is answered here, wherever its key has gone since.
        new = [job for job in jobs if not self._is_stored(job.id)]
        for key in {key_of(job) for job in new} - {""}:
            self._require_home(key)
        self._as_added.update((job.id, job) for job in new)
        return await super().add(new, batches)

    async def claim(self, claim: Claim) -> Claimed:
        rules: dict[str, AnyRule] = {}
        for limit, rule in claim.rules.items():
            key = key_of_limit(limit)
            place = self.executor_of(key)
            if not key:
                rules[limit] = rule
            elif place.owner == self.name and place.to is None:
                rules[limit] = _in_key_time(rule, place.ahead)
        claimed = await super().claim(replace(claim, rules=rules))
        return replace(claimed, jobs=[self.in_key_time(job) for job in claimed.jobs])

    async def note_limit_sets(
        self, limit_sets: Mapping[str, str], *, lives: int = LIMIT_SET_LIVES
    ) -> Mapping[str, bool]:
        # A declared rule would replace that of a key, which is asked in the key's own time.
        without_rules = {name: each for name, each in limit_sets.items() if not name.startswith(LIMIT_SUBJECT)}
        return await super().note_limit_sets(without_rules, lives=lives)

    async def job(self, job_id: str) -> JobRecord | None:  # type: ignore[misc]
        record = await super().job(job_id)
        return None if record is None else cast(JobRecord, _RecordInKeyTime(record, self.in_key_time))

    def in_key_time(self, job: ClaimedJob) -> ClaimedJob:
        charges: list[RemoteCharge | None] = []
        for index, ref in enumerate(job.buckets):
            if ref.key:
                ahead = self.executor_of(ref.key).ahead
                charges.append(RemoteCharge(job.charged_at + ahead, ahead))
            else:
                charges.append(None if job.remote_charges is None else job.remote_charges[index])
        return replace(job, remote_charges=tuple(charges)) if charges else job

    async def amend(self, amendments: Sequence[Amendment], rules: Mapping[str, AnyRule]) -> None:
        """Those of keys are in key time, and wanted by who has the key's buckets."""
        for amendment in amendments:
            ref = amendment.ref
            ahead = self._ahead_of(ref.key)
            in_shard_time = replace(
                amendment, charged_at=amendment.charged_at - ahead, started_at=amendment.started_at - ahead
            )
            await super().amend([in_shard_time], {ref.limit: _in_key_time(rules[ref.limit], ahead)})

    async def finish(
        self, node: str, endings: Sequence[Ending], rules: Mapping[str, AnyRule] = NO_RULES
    ) -> Sequence[bool | None]:
        """The charge of a key that is no longer here stays."""
        written: list[bool | None] = []
        for ending in endings:
            in_key_time: dict[str, AnyRule] = {}
            for each in ending.corrections:
                with contextlib.suppress(KeyMoved, KeyInTransit):
                    in_key_time[each.ref.limit] = _in_key_time(rules[each.ref.limit], self._ahead_of(each.ref.key))
            written += await super().finish(node, [ending], in_key_time)
        return written

    async def move_starts(
        self, node: str, starts: Sequence[StartMove], rules: Mapping[str, AnyRule]
    ) -> Mapping[tuple[str, int], int]:
        in_key_time = {
            ref.limit: _in_key_time(rules[ref.limit], self._ahead_of(ref.key))
            for start in starts
            for ref in start.buckets
        }
        return await super().move_starts(node, starts, in_key_time)

    def _ahead_of(self, key: str) -> int:
        """How far the time of a key is ahead of this shard's. Raises KeyMoved or KeyInTransit if it is not here."""
        if not key:
            return 0
        place = self.executor_of(key)
        if place.owner != self.name:
            raise KeyMoved(key, place)
        if place.to is not None and self._is_drained(key):
            raise KeyInTransit(f"{key!r} is packed")
        return place.ahead

    async def cancel(  # type: ignore[misc]
        self, job_id: str, *, audit_record: AuditRecord | None = None, waiting_only: bool = False
    ) -> JobState | None:
        if any(job_id in ids for _, ids in self._departing.values()):
            raise KeyInTransit(f"job {job_id} is on its way")
        return await super().cancel(job_id, audit_record=audit_record, waiting_only=waiting_only)

    # ------------------------------------------------------------------------------------- a key moves away

    async def leave_key(self, key: str, to: str) -> None:
        """Start nothing of the key from now on: it goes to another shard."""
        place = self._require_home(key)
        if to != self.name:
            self._homes[key] = replace(place, to=to)

    async def pack(self, key: str, limits: Iterable[str]) -> Parcel | None:
        """What a key that is leaving takes along; None while jobs run that hold its permits, or if it has left."""
        place = self.executor_of(key)
        if place.owner != self.name or place.to is None or not self._is_drained(key):
            return None
        states: dict[BucketRef, str | None] = {}
        for ref in (BucketRef(limit, key) for limit in limits):
            found = self._rows("SELECT state FROM bucket WHERE limit_name = ? AND key = ?", ref.limit, ref.key)
            states[ref] = found[0][0] if found else None
            assert not load_permits(states[ref]).held, f"permits of {ref} are held"
        return Parcel(self.limit_now() + place.ahead, states, place.arrived)

    async def let_go(self, key: str, epoch: int) -> None:
        """The other shard owns the key, since `epoch`."""
        place = self.executor_of(key)
        if place.owner == self.name and place.to is not None and place.epoch == epoch - 1:
            self._homes[key] = Place(epoch, place.to, ahead=place.ahead)

    def _is_drained(self, key: str) -> bool:
        return not self._rows(
            f"SELECT 1 FROM job WHERE state = 'running' AND terms IS NOT NULL AND {_KEY} = ? LIMIT 1", key
        )

    # ---------------------------------------------------------------------------------------- a key arrives

    async def read_time(self) -> int:
        return self.limit_now()

    async def take_in(self, key: str, epoch: int, parcel: Parcel, ahead: int, rules: Mapping[str, AnyRule]) -> None:
        """Own the key from now on; without effect if something newer is known of it."""
        if self.executor_of(key).epoch >= epoch:
            return
        now = self.limit_now()
        arrived = await self._end_departure(key, dict(parcel.arrived))
        self._homes[key] = Place(epoch, self.name, ahead=ahead, arrived=arrived)
        for ref, stored in parcel.states.items():
            await self.reset(ref)
            rules_in_key_time = {ref.limit: _in_key_time(rules[ref.limit], ahead)}
            await self.visit(ref, rules_in_key_time, partial(_put_state, stored=stored, now=now))
        self._wake()

    async def _end_departure(self, key: str, arrived: dict[str, int]) -> dict[str, int]:
        """The key comes back: what had not arrived elsewhere is at home again, and its number is used up."""
        number, ids = self._departing.pop(key, (0, frozenset()))
        if number:
            if arrived.get(self.name, 0) >= number:
                await self._remove(ids)
            arrived[self.name] = number
        return arrived

    # ----------------------------------------------------------------------- waiting jobs follow their key

    async def depart(self, key: str) -> Batch | None:
        """The next of the jobs that wait here and not where their key is; the same again until they have arrived."""
        if self.executor_of(key).owner == self.name:
            return None
        if key not in self._departing:
            ids = self._rows(
                f"SELECT id FROM job WHERE state = 'waiting' AND {_KEY} = ? ORDER BY rank, rowid LIMIT ?",
                key,
                BATCH,
            )
            if not ids:
                return None
            self._last_batch[key] = self._last_batch.get(key, 0) + 1
            self._departing[key] = self._last_batch[key], frozenset(job_text(id) for (id,) in ids)
        number, departing = self._departing[key]
        return Batch(self.name, number, [self._departing_job(id) for id in sorted(departing)])

    def _departing_job(self, id: str) -> DepartingJob:
        ((run_at, delayed, attempt, fence, lost, error),) = self._rows(
            "SELECT run_at, delayed, attempt, fence, lost, error FROM job WHERE id = ?", job_number(id)
        )
        new = replace(self._as_added[id], run_at=run_at, delayed=bool(delayed))
        attempts = self._rows("SELECT * FROM attempt WHERE job = ?", job_number(id))
        return DepartingJob(new, attempt, fence, lost, error, attempts)

    async def arrive(self, key: str, batch: Batch) -> None:
        """Keep the jobs, unless they have arrived before."""
        place = self._require_home(key)
        if place.arrived.get(batch.source, 0) >= batch.number:
            return
        for each in batch.jobs:
            if not self._is_stored(each.new.id):
                self._as_added[each.new.id] = each.new
                await super().add([each.new])
                self._rows(
                    "UPDATE job SET attempt = ?, fence = ?, lost = ?, error = ? WHERE id = ?",
                    *(each.attempt, each.fence, each.lost, each.error, job_number(each.new.id)),
                )
                for attempt in each.attempts:
                    # Its row has another id in each database.
                    self._rows(f"INSERT INTO attempt VALUES (NULL{', ?' * (len(attempt) - 1)})", *attempt[1:])
        self._homes[key] = replace(place, arrived={**place.arrived, batch.source: batch.number})
        self._wake()

    async def departed(self, key: str, number: int) -> None:
        """The batch has arrived."""
        if self._departing.get(key, (0,))[0] == number:
            await self._remove(self._departing.pop(key)[1])

    async def _remove(self, ids: Iterable[str]) -> None:
        for id in ids:
            await super().cancel(id)
        await self.delete(list(ids), finished_before=self.now() + 1)

    def _is_stored(self, id: str) -> bool:
        return bool(self._rows("SELECT 1 FROM job WHERE id = ?", job_number(id)))

    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values).fetchall()

    def _require_home(self, key: str) -> Place:
        place = self.executor_of(key)
        if place.owner != self.name:
            raise KeyMoved(key, place)
        if place.to is not None:
            raise KeyInTransit(f"{key!r} goes to {place.to}")
        return place


def key_of(job: NewJob) -> str:
    """The key that decides where a job is at home: that of its first bucket, "" if it has none."""
    return job.buckets[0].key if job.buckets else ""


def key_of_limit(limit: str) -> str:
    return limit.partition(":")[2]


def hash_home(key: str, names: Sequence[str]) -> str:
    """Where a key is until it moves."""
    return names[crc32(key.encode()) % len(names)]


def _in_key_time(rule: AnyRule, ahead: int) -> Any:
    # Permits know no time.
    return rule if not ahead or isinstance(rule, Semaphore) else InKeyTime(rule, ahead)


_KEY = "json_extract(buckets, '$[0][1]')"


def _put_state(visit: BucketVisit, stored: str | None, now: int) -> None:
    if stored is not None:
        visit.view.state = visit.view.rule.load(stored, now)
        visit.view.charged = True
    visit.reopens = True
