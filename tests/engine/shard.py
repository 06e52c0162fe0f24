"""A memory storage that is one of several: it starts the jobs of the keys that it owns, and hands keys over.

What it adds to a storage are the verbs that `docs/decisions` tells of in "Beyond one PostgreSQL". Each is one commit.
Every key has limits of its own here, named `rule:key`, because a claim names its rules by limit: that is how a key gets
its own time, and how the lanes of a key that is not owned are passed over. What has the key "" is nobody's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast
from zlib import crc32

import msgspec
from msgspec.structs import replace

from headgate.clock import SECOND, Clock
from headgate.errors import StorageUnavailable
from headgate.jobs.audit import Deed
from headgate.jobs.batch import NewBatch
from headgate.jobs.job import Attempt, ChargedElsewhere, ClaimedJob, Draw, JobError, JobRecord, JobState, NewJob
from headgate.limits.concurrency import Semaphore
from headgate.limits.limit import AnyRule
from headgate.limits.rule import Rule
from headgate.storage.memory import MemoryStorage
from headgate.storage.memory.job import WAITING, Job
from headgate.storage.memory.lane import Lane
from headgate.storage.protocol import Amendment, Claim, Claimed

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
    states: Mapping[Draw, str | None]
    arrived: Mapping[str, int]


class Departing(msgspec.Struct, frozen=True):
    """A waiting job on its way, with what it has behind it."""

    new: NewJob
    attempt: int
    fence: int
    lost: int
    error: JobError | None
    attempts: Sequence[Attempt]


class Batch(msgspec.Struct, frozen=True):
    """Jobs of a key that wait at a shard that does not own it; the next batch of this shard has the next number."""

    source: str
    number: int
    jobs: Sequence[Departing]


class Moved(StorageUnavailable):
    """Another shard owns the key."""

    def __init__(self, key: str, place: Place) -> None:
        super().__init__(f"{key!r} is at {place.owner}, epoch {place.epoch}")
        self.key = key
        self.place = place


class OnItsWay(StorageUnavailable):
    """The key, or the job, is between two shards; ask again in a moment."""


class InKeyTime(Rule[Any], frozen=True):
    """The rule of a key, asked in the limit time of a shard that the key's own time is `ahead` of."""

    real: Any
    ahead: int

    kind: ClassVar[str] = "in key time"

    @property
    def period(self) -> int:
        return int(self.real.period)

    @property
    def margin(self) -> int:
        return int(self.real.margin)

    def take(self, state: Any, now: int, cost: int = 1) -> tuple[int, Any]:
        opens_at, after = self.real.take(state, now + self.ahead, cost)
        return opens_at - self.ahead, after

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


class Shard(MemoryStorage):
    """One database of several. `names` are all of them: a key that never moved is where its hash says."""

    def __init__(self, name: str, names: Sequence[str], clock: Clock) -> None:
        super().__init__(clock)
        self.name = name
        self.clock = clock
        self._names = names
        self._places: dict[str, Place] = {}
        self._departing: dict[str, tuple[int, frozenset[str]]] = {}
        self._last_batch: dict[str, int] = {}

    def place_of(self, key: str) -> Place:
        """Where this shard believes the key to be."""
        return self._places.get(key) or Place(0, hash_home(key, self._names))

    def step(self, seconds: float) -> None:
        """Its limit time steps, as when another server takes over and nobody notices; backwards it stands still."""
        self._ahead += round(seconds * SECOND)

    # ------------------------------------------------------------------------------- what every storage does

    async def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> Mapping[str, str]:
        # A repeat of what is here is answered here, wherever its key has gone since.
        new = [job for job in jobs if job.id not in self._jobs.by_id]
        for key in {key_of(job) for job in new} - {""}:
            self._require_home(key)
        return await super().add(new, batches)

    async def claim(self, claim: Claim) -> Claimed:
        rules: dict[str, AnyRule] = {}
        for limit, rule in claim.rules.items():
            key = key_of_limit(limit)
            place = self.place_of(key)
            if not key:
                rules[limit] = rule
            elif place.owner == self.name and place.to is None:
                rules[limit] = _in_key_time(rule, place.ahead)
        claimed = await super().claim(replace(claim, rules=rules))
        return replace(claimed, jobs=[self.in_key_time(job) for job in claimed.jobs])

    async def job(self, job_id: str) -> JobRecord | None:
        record = await super().job(job_id)
        return None if record is None else cast(JobRecord, _RecordInKeyTime(record, self.in_key_time))

    def in_key_time(self, job: ClaimedJob) -> ClaimedJob:
        charges: list[ChargedElsewhere | None] = []
        for index, draw in enumerate(job.draws):
            if draw.key:
                ahead = self.place_of(draw.key).ahead
                charges.append(ChargedElsewhere(job.charged_at + ahead, ahead))
            else:
                charges.append(None if job.elsewhere is None else job.elsewhere[index])
        return replace(job, elsewhere=tuple(charges)) if charges else job

    async def amend(self, amendments: Sequence[Amendment], rules: Mapping[str, AnyRule]) -> None:
        """Those of keys are in key time, and wanted by who has the key's buckets."""
        for amendment in amendments:
            key = amendment.draw.key
            ahead = 0
            if key:
                place = self.place_of(key)
                if place.owner != self.name:
                    raise Moved(key, place)
                if place.to is not None and self._is_drained(key):
                    raise OnItsWay(f"{key!r} is packed")
                ahead = place.ahead
            limit = amendment.draw.limit
            in_shard_time = replace(
                amendment, charged_at=amendment.charged_at - ahead, started_at=amendment.started_at - ahead
            )
            await super().amend([in_shard_time], {limit: _in_key_time(rules[limit], ahead)})

    async def cancel(self, job_id: str, *, deed: Deed | None = None) -> JobState | None:
        if any(job_id in ids for _, ids in self._departing.values()):
            raise OnItsWay(f"job {job_id} is on its way")
        return await super().cancel(job_id, deed=deed)

    # ------------------------------------------------------------------------------------- a key moves away

    async def leave_key(self, key: str, to: str) -> None:
        """Start nothing of the key from now on: it goes to another shard."""
        place = self._require_home(key)
        if to != self.name:
            self._places[key] = replace(place, to=to)

    async def pack(self, key: str, limits: Iterable[str]) -> Parcel | None:
        """What a key that is leaving takes along; None while jobs run that hold its permits, or if it has left."""
        place = self.place_of(key)
        if place.owner != self.name or place.to is None or not self._is_drained(key):
            return None
        states: dict[Draw, str | None] = {}
        for draw in (Draw(limit, key) for limit in limits):
            bucket = self._lanes.buckets.get(draw)
            assert bucket is None or not bucket.permits.held, f"permits of {draw} are held"
            states[draw] = None if bucket is None or bucket.state is None else bucket.rule.dump(bucket.state)
        return Parcel(self.limit_now() + place.ahead, states, place.arrived)

    async def let_go(self, key: str, epoch: int) -> None:
        """The other shard owns the key, since `epoch`."""
        place = self.place_of(key)
        if place.owner == self.name and place.to is not None and place.epoch == epoch - 1:
            self._places[key] = Place(epoch, place.to, ahead=place.ahead)

    def _is_drained(self, key: str) -> bool:
        running = (job for node in self._nodes.values() for job in node.running.values())
        return not any(job.new.terms is not None and key_of(job.new) == key for job in running)

    # ---------------------------------------------------------------------------------------- a key arrives

    async def read_time(self) -> int:
        return self.limit_now()

    async def take_in(self, key: str, epoch: int, parcel: Parcel, ahead: int, rules: Mapping[str, AnyRule]) -> None:
        """Own the key from now on; without effect if something newer is known of it."""
        if self.place_of(key).epoch >= epoch:
            return
        now = self.limit_now()
        arrived = self._end_departure(key, dict(parcel.arrived))
        self._places[key] = Place(epoch, self.name, ahead=ahead, arrived=arrived)
        for draw, stored in parcel.states.items():
            bucket = self._lanes.bucket(draw)
            bucket.renew(keep_state=False)
            self._lanes.judge(bucket, _in_key_time(rules[draw.limit], ahead), now)
            bucket.state = None if stored is None else bucket.rule.load(stored, now)
            self._lanes.reopen(bucket, now)
            self._lanes.list_unused(bucket)
        self._wake()

    def _end_departure(self, key: str, arrived: dict[str, int]) -> dict[str, int]:
        """The key comes back: what had not arrived elsewhere is at home again, and its number is used up."""
        number, ids = self._departing.pop(key, (0, frozenset()))
        if number:
            if arrived.get(self.name, 0) >= number:
                self._remove(ids)
            arrived[self.name] = number
        return arrived

    # ----------------------------------------------------------------------- waiting jobs follow their key

    async def depart(self, key: str) -> Batch | None:
        """The next of the jobs that wait here and not where their key is; the same again until they have arrived."""
        if self.place_of(key).owner == self.name:
            return None
        if key not in self._departing:
            waiting = [job for job in self._jobs.by_id.values() if job.state is WAITING and key_of(job.new) == key]
            if not waiting:
                return None
            waiting.sort(key=lambda job: (-job.new.priority, job.run_at, job.seq))
            self._last_batch[key] = self._last_batch.get(key, 0) + 1
            self._departing[key] = self._last_batch[key], frozenset(job.id for job in waiting[:BATCH])
        number, ids = self._departing[key]
        return Batch(self.name, number, [_departing(self._jobs.by_id[id]) for id in sorted(ids)])

    async def arrive(self, key: str, batch: Batch) -> None:
        """Keep the jobs, unless they have arrived before."""
        place = self._require_home(key)
        if place.arrived.get(batch.source, 0) >= batch.number:
            return
        for each in batch.jobs:
            if each.new.id in self._jobs.by_id:
                continue
            self._jobs.add([each.new], self.limit_now())
            job = self._jobs.by_id[each.new.id]
            job.attempt, job.fence, job.lost, job.error = each.attempt, each.fence, each.lost, each.error
            job.attempts = list(each.attempts)
        self._places[key] = replace(place, arrived={**place.arrived, batch.source: batch.number})
        self._wake()

    async def departed(self, key: str, number: int) -> None:
        """The batch has arrived."""
        if self._departing.get(key, (0,))[0] == number:
            self._remove(self._departing.pop(key)[1])

    def _remove(self, ids: Iterable[str]) -> None:
        for id in ids:
            job = self._jobs.by_id[id]
            self._jobs._leave(job, self.limit_now())
            del self._jobs.by_id[id]
            self._jobs._ids.remove(id)

    def _require_home(self, key: str) -> Place:
        place = self.place_of(key)
        if place.owner != self.name:
            raise Moved(key, place)
        if place.to is not None:
            raise OnItsWay(f"{key!r} goes to {place.to}")
        return place


def key_of(job: NewJob) -> str:
    """The key that decides where a job is at home: that of its first draw, "" if it has none."""
    return job.draws[0].key if job.draws else ""


def key_of_limit(limit: str) -> str:
    return limit.partition(":")[2]


def hash_home(key: str, names: Sequence[str]) -> str:
    """Where a key is until it moves."""
    return names[crc32(key.encode()) % len(names)]


def _in_key_time(rule: AnyRule, ahead: int) -> Any:
    # Permits know no time.
    return rule if not ahead or isinstance(rule, Semaphore) else InKeyTime(rule, ahead)


def _departing(job: Job[Lane]) -> Departing:
    new = replace(job.new, run_at=job.run_at, delayed=job.delayed)
    return Departing(new, job.attempt, job.fence, job.lost, job.error, tuple(job.attempts or ()))
