"""Terms: what limits require of a job besides its buckets and costs. Most jobs have none: they hold no permits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

import msgspec
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.jobs.bucket_mask import NO_BUCKETS, BucketMask, chosen, intersection, mask_where, without
from headgate.jobs.state import JobState

T = TypeVar("T")

CLAIM_TIME = SECOND
"""How long a job whose limits open at the end of its `max_wait` may take to start after that (µs)."""


class PermitTerms(msgspec.Struct, frozen=True, array_like=True):
    """How long a job keeps a permit, and the owner that shares it; without an owner the job holds its own.

    With `until` "batch" the owner is the batch: it keeps the permit until it is final, even if none of its jobs runs.
    """

    until: Literal["running", "until_final", "until_success", "batch"] = "running"
    owner: str | None = None

    @property
    def outlasts_attempts(self) -> bool:
        """Whether the job keeps the permit while it waits for its next attempt."""
        return self.until in ("until_final", "until_success")

    def holder(self, job_id: str) -> str:
        """Return the holder of the permit as it is stored."""
        if self.until == "batch":
            return f"batch:{self.owner}"
        return job_id if self.owner is None else f"owner:{self.owner}"


class CallTerms(msgspec.Struct, frozen=True, array_like=True):
    """The calls of a chunked task that some limits count: each handles up to `size` jobs. `buckets` are theirs."""

    task: str
    size: int
    buckets: BucketMask


class LimitTerms(msgspec.Struct, frozen=True, omit_defaults=True):
    """The terms of one job.

    `holds` has an entry for each bucket, None for a rate; it is empty if no bucket has permits. A retry is not
    charged for the buckets in `free_retries`. `patience` is how long the job may wait until it starts (µs; 0: not at
    all): its `max_wait`, within which its limits have to open, and `CLAIM_TIME` for the claim after that. With
    `cancels` a rejected job is cancelled instead of failed. With `skips` it is cancelled if it is rejected or expires
    before an attempt was spent: an occurrence of a schedule that does not run is no failure. `calls` is set if one of
    its limits counts the calls of its task.
    """

    holds: tuple[PermitTerms | None, ...] = ()
    free_retries: BucketMask = NO_BUCKETS
    patience: int | None = None
    cancels: bool = False
    skips: bool = False
    calls: CallTerms | None = None

    @property
    def max_wait(self) -> int:
        """How long its limits may take to open (µs); 0: not at all, or without a bound."""
        return max(0, (self.patience or 0) - CLAIM_TIME)

    @property
    def discards(self) -> bool:
        """Whether the job is rejected as soon as it meets a closed bucket."""
        return self.patience == 0

    def rejected_as(self, attempts: int = 0) -> JobState:
        """Return how a job ends that its limits reject after so many spent attempts."""
        return JobState.CANCELLED if self.cancels else self.expires_as(attempts)

    def expires_as(self, attempts: int = 0) -> JobState:
        """Return how a job ends that expires after so many spent attempts."""
        return JobState.CANCELLED if self.skips and not attempts else JobState.FAILED

    def skipping(self) -> LimitTerms:
        """Return these terms for an occurrence of a schedule."""
        return replace(self, skips=True)

    def retried(self, attempts: int) -> LimitTerms:
        """Return these terms for a job that is retried from a final state, after so many spent attempts."""
        return replace(self, skips=False) if self.skips and attempts else self

    @property
    def permits(self) -> BucketMask:
        """Its buckets that have permits."""
        return mask_where(holding is not None for holding in self.holds)

    def kept(self, held: BucketMask, state: JobState) -> BucketMask:
        """Return those of the held permits that a job keeps when it changes to `state`."""
        if state is JobState.WAITING:
            lasting = mask_where(holding is not None and holding.outlasts_attempts for holding in self.holds)
            return intersection(held, lasting)
        if state is JobState.FAILED:
            lasting = mask_where(holding is not None and holding.until == "until_success" for holding in self.holds)
            return intersection(held, lasting)
        return held if state is JobState.RUNNING else NO_BUCKETS

    @property
    def of_batch(self) -> BucketMask:
        """The buckets whose permits the batch holds."""
        return mask_where(holding is not None and holding.until == "batch" for holding in self.holds)

    def wait_mode(self, exempt: BucketMask = NO_BUCKETS) -> str:
        """Return what else distinguishes its lane; "" for most.

        That is whether it waits, the owners of shared permits, and the task whose calls its limits count.
        """
        owners = [
            holding.owner
            for holding in without(self.holds, exempt)
            if holding is not None and holding.owner is not None
        ]
        if self.calls is not None:
            return msgspec.json.encode((self.discards, owners, self.calls.task, self.calls.size)).decode()
        if not owners and not self.discards:
            return ""
        return msgspec.json.encode((self.discards, owners)).decode()


def mode_discards(wait_mode: str) -> bool:
    """Return whether jobs in a lane of this wait mode are rejected instead of waiting behind a closed bucket."""
    return wait_mode.startswith("[true")


def mode_call_size(wait_mode: str) -> int:
    """Return how many jobs of a lane one call handles, if one of its limits counts calls; 1 otherwise.

    Of a lane whose mode cannot be read, it is 1 as well.
    """
    if not wait_mode:
        return 1
    try:
        match msgspec.json.decode(wait_mode):
            case [_, _, str(), int(size)] if size > 0:
                return size
    except msgspec.DecodeError:
        pass
    return 1


def kept_permits(
    job_id: str,
    before: Sequence[T],
    old: LimitTerms | None,
    held: BucketMask,
    after: Sequence[T],
    new: LimitTerms | None,
) -> frozenset[T]:
    """Return the buckets whose permits a job keeps when its buckets and terms change: those with the same holder."""
    if old is None or new is None or not held:
        return frozenset()
    holders = {
        ref: holding.holder(job_id)
        for ref, holding in chosen(zip(before, old.holds, strict=False), held)
        if holding is not None
    }
    return frozenset(
        ref
        for ref, holding in zip(after, new.holds, strict=False)
        if holding is not None and holders.get(ref) == holding.holder(job_id)
    )
