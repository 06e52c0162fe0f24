"""The holders of a bucket's permits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from headgate.jobs.state import JobState
from headgate.limits.concurrency import OF_BATCH, load_permits
from headgate.storage.records import BucketRecord
from headgate.storage.store import Store

MOST_HOLDERS = 20
"""How many holders of one bucket are listed."""


@dataclass(frozen=True, slots=True)
class PermitHolder:
    """A job, a batch or an owner that holds a permit, its cost, and its state.

    The state is None for a batch that is not final, for a job or batch that is no longer stored, and for an owner.
    """

    kind: Literal["job", "batch", "owner"]
    id: str
    state: JobState | None
    cost: int

    def __str__(self) -> str:
        if self.kind == "owner":
            return f"owner {self.id!r}"
        state = self.state or ("not final" if self.kind == "batch" else "no longer stored")
        return f"{self.kind} {self.id} ({state})"


async def holders_of(storage: Store, record: BucketRecord) -> Sequence[PermitHolder]:
    """Return up to 20 holders of the bucket's permits; none for a limit that counts starts."""
    found: list[PermitHolder] = []
    for holder, hold in islice(load_permits(record.state).holders.items(), MOST_HOLDERS):
        if holder.startswith(OF_BATCH):
            id = holder[len(OF_BATCH) :]
            batch = await storage.batch(id)
            found.append(PermitHolder("batch", id, None if batch is None else batch.ended_as, hold.cost))
        elif holder.startswith("owner:"):
            found.append(PermitHolder("owner", holder.removeprefix("owner:"), None, hold.cost))
        else:
            job = await storage.job(holder)
            found.append(PermitHolder("job", holder, None if job is None else job.state, hold.cost))
    return found


def describe_holders(holders: Sequence[PermitHolder]) -> str:
    """Return the holders in a line: the first three, and how many others are known, as 20 at most are listed."""
    more = len(holders) - 3
    least = "at least " if len(holders) == MOST_HOLDERS else ""
    return ", ".join(map(str, holders[:3])) + (f" and {least}{more} more" if more > 0 else "")
