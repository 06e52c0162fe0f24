"""The limits of a batch: all its jobs use them under one permit, which the batch holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from headgate.errors import DeclarationError
from headgate.jobs.bucket_mask import chosen
from headgate.jobs.job import BucketRef
from headgate.jobs.terms import LimitTerms, PermitTerms
from headgate.limits.fair import PREFIX
from headgate.limits.key import BETWEEN_LEVELS, stored_level
from headgate.limits.limit import Limit, suggested_limits
from headgate.tasks.call import BatchLimit
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.limit_set import Arguments, BoundLimit, GatedCall, Headers


class BatchLimits:
    """The limits of one batch: all its jobs must have the same key for each."""

    def __init__(self, batch: str, limits: Sequence[BatchLimit], known: Mapping[str, Limit]) -> None:
        self._batch = batch
        self._limits = [_named(limit, known) for limit in limits]
        self._bound: dict[str, list[BoundLimit]] = {}
        self._buckets: tuple[BucketRef, ...] | None = None

    def joined(self, gated: GatedCall, task: TaskDefinition, arguments: Arguments, headers: Headers) -> GatedCall:
        """Return the buckets for a call of that task, with those of its batch.

        Raises DeclarationError if the key differs from that of the earlier calls.
        """
        bound = self._bound.get(task.name)
        if bound is None:
            where, payload = f"a batch with task {task.name!r}", task.payload
            bound = self._bound[task.name] = [
                BoundLimit(limit, name, payload.parameters, where, payload.fields) for name, limit in self._limits
            ]
        buckets = tuple(BucketRef(limit.name, limit.key(arguments, headers, _refuse) or "") for limit in bound)
        if self._buckets is None:
            self._buckets = buckets
        if buckets != self._buckets:
            before, now = next(pair for pair in zip(self._buckets, buckets, strict=True) if pair[0] != pair[1])
            raise DeclarationError(
                f"the calls of a batch hold {before.limit!r} together, but one has the key {before.key!r} and another "
                f"{now.key!r}; make a batch of each"
            )
        return with_batch_permits(gated, buckets, self._batch)


def with_batch_permits(gated: GatedCall, buckets: Sequence[BucketRef], batch: str) -> GatedCall:
    """Return the buckets of a call with those that its batch holds for it."""
    own = gated.terms or LimitTerms()
    holding = PermitTerms("batch", batch)
    refs = [_in_group(ref) for ref in gated.buckets]
    holds = dict(zip(refs, own.holds or [None] * len(refs), strict=True))
    costs = dict(zip(refs, gated.costs or [1] * len(refs), strict=True))
    for ref in buckets:
        # If the call also uses it by itself, only the batch holds it.
        holds[ref], costs[ref] = holding, costs.get(ref, 1)
    return GatedCall(
        tuple(holds),
        None if gated.costs is None else tuple(costs.values()),
        replace(own, holds=tuple(holds.values())),
    )


def _in_group(ref: BucketRef) -> BucketRef:
    """Return a bucket. In a fair queue each batch of a key has a lane of its own: they are a group, with one turn."""
    is_order = ref.limit.startswith(PREFIX) and BETWEEN_LEVELS not in ref.key
    return BucketRef(ref.limit, stored_level(ref.key) + BETWEEN_LEVELS) if is_order else ref


def buckets_in_batch(gated: GatedCall, before: Sequence[BucketRef], terms: LimitTerms | None) -> GatedCall:
    """Return the new buckets of a stored call, with the buckets that its batch holds for it."""
    if terms is None or not terms.of_batch:
        return gated
    buckets = chosen(before, terms.of_batch)
    (batch,) = {holding.owner for holding in terms.holds if holding is not None and holding.until == "batch"}
    return with_batch_permits(gated, buckets, batch or "")


def _named(limit: BatchLimit, known: Mapping[str, Limit]) -> tuple[str, Limit]:
    name = limit if isinstance(limit, str) else limit.name
    assert name is not None
    found = known.get(name) if isinstance(limit, str) else limit
    if found is None:
        if suggested_limits(name) is not None:
            raise DeclarationError(f"a batch cannot hold {name!r}: rates count starts; give it a Mutex(…)")
        raise DeclarationError(f"a batch holds limit {name!r}, which is not declared; declare it with app.limit(…)")
    if found.permit is None:
        raise DeclarationError(f"a batch cannot hold limit {name!r}, {found.rule.describe()}: rates count starts")
    return name, found


def _refuse(limit: str, reason: str) -> None:
    raise DeclarationError(f"a batch holds limit {limit!r}, and one of its calls has no key: {reason}")
