"""The limits of one task: for each call, the buckets that it uses, its costs and its terms."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

from msgspec.structs import replace

from headgate.arguments import LARGEST_COUNT
from headgate.errors import CostExceedsLimit, DeclarationError, PayloadError
from headgate.jobs.bucket_mask import NO_BUCKETS, mask_where
from headgate.jobs.job import BucketRef
from headgate.jobs.terms import CLAIM_TIME, CallTerms, LimitTerms, PermitTerms
from headgate.limits.argument_fields import ArgumentFields
from headgate.limits.described_callable import described_callable
from headgate.limits.key import SHARED, UNTYPED, bucket_key, compile_key, is_constant, reads_arguments
from headgate.limits.limit import Limit, WaitTerms, require_list, suggested_limits, wait_terms
from headgate.tasks.chunk import Chunk
from headgate.tasks.payload import PayloadType, ResultUnknown

OnSkip = Callable[[str, str], None]
"""Called with the limit's name and the reason when a job runs without that limit."""

Arguments = Mapping[str, Any]
Headers = Mapping[str, str]


def ignore_skip(limit: str, reason: str) -> None:
    """Do nothing, as an `OnSkip`: the skipped limit is published elsewhere."""


class BoundLimit:
    """A limit with its full name, bound to the arguments of a task."""

    def __init__(
        self,
        limit: Limit,
        name: str,
        parameters: Sequence[str],
        where: str,
        fields: ArgumentFields = UNTYPED,
        calls: CallTerms | None = None,
    ) -> None:
        self.limit = limit
        self.calls: CallTerms | None = calls if limit.per_call else None
        self.name = name
        self.where: str = f"limit {name!r} of {where}"
        self._key = compile_key(limit.key, parameters, self.where, fields)
        self._one_for_all = limit.key is None
        if self._one_for_all and limit.rule.shares_state:
            raise DeclarationError(f"{self.where} shares a ceiling among keys, so it needs a key=")
        fixed = isinstance(limit.cost, int)
        self._cost = None if fixed else compile_key(limit.cost, parameters, f"the cost of {self.where}", fields)
        if isinstance(limit.cost, str) and is_constant(limit.cost) and not limit.cost.strip().isdecimal():
            raise DeclarationError(
                f"cost={limit.cost!r:.80} of {self.where} is not a number and names no argument; write cost=5, or "
                'cost="{argument}"'
            )
        self.fixed_cost: int = limit.cost if isinstance(limit.cost, int) else 0
        self.holding: PermitTerms | None = None if limit.permit is None else PermitTerms(limit.permit.hold)
        owner = None if limit.permit is None else limit.permit.owner
        self._owner = None if owner is None else compile_key(owner, parameters, f"the owner of {self.where}", fields)
        self.has_owners: bool = owner is not None
        self.reads_arguments: bool = any(map(reads_arguments, (limit.key, limit.cost, owner)))
        own = wait_terms(limit.on_limit, limit.max_wait, self.where, "limit")
        self.has_own_terms: bool = own is not None
        self.wait_terms: WaitTerms = own or WaitTerms()

    def with_default(self, terms: WaitTerms) -> BoundLimit:
        """Return the limit with these terms, unless it has its own."""
        if self.has_own_terms or terms == self.wait_terms:
            return self
        copied = copy(self)
        copied.wait_terms = terms
        return copied

    def key(self, arguments: Arguments, headers: Headers, on_skip: OnSkip) -> str | None:
        """Return the key of a call; None: this limit does not apply.

        Raises PayloadError as its options say, and ResultUnknown.
        """
        try:
            key = bucket_key(self._key(arguments, headers))
        except ResultUnknown as error:
            raise ResultUnknown(f"{self.where}: {error}") from None
        except Exception as error:
            # A user's key function may raise anything, and must not lose the job.
            reason = f"its key could not be computed: {type(error).__name__}: {error}"
            if self.limit.on_key_error == "fail":
                raise PayloadError(f"{self.where}: {reason}; nothing was stored") from error
            on_skip(self.name, reason)
            return None
        if key or self._one_for_all:
            return key
        match self.limit.on_missing_key:
            case "shared":
                return SHARED
            case "fail":
                raise PayloadError(f"{self.where}: its key is empty; nothing was stored")
            case _:
                on_skip(self.name, "its key is empty")
                return None

    def cost(self, arguments: Arguments, headers: Headers) -> int:
        """Return what a call costs. Raises PayloadError unless it is an integer from 1, CostExceedsLimit if too big."""
        if self._cost is None:
            return self.fixed_cost
        value = self._cost(arguments, headers)
        try:
            cost = int(str(value))
        except ValueError:
            cost = 0
        if not 1 <= cost <= LARGEST_COUNT:
            raise PayloadError(f"{self.where} costs {value!r:.80}; a cost is a whole number from 1")
        try:
            self.limit.rule.check_cost(cost)
        except CostExceedsLimit as error:
            raise CostExceedsLimit(f"{self.where}: {error}") from None
        return cost

    def permit_of(self, arguments: Arguments, headers: Headers) -> PermitTerms | None:
        """Return how a call holds its permit. Raises PayloadError if the owner is empty."""
        if self._owner is None or self.holding is None:
            return self.holding
        owner = bucket_key(self._owner(arguments, headers))
        if not owner:
            raise PayloadError(f"{self.where}: the owner of its permit is empty; nothing was stored")
        return PermitTerms(self.holding.until, owner)


class GatedCall(NamedTuple):
    """The buckets of a call on its limits."""

    buckets: tuple[BucketRef, ...] = ()
    costs: tuple[int, ...] | None = None
    terms: LimitTerms | None = None


UNGATED = GatedCall()


class LimitSet:
    """All limits of a task: they admit a job together or not at all."""

    def __init__(self, limits: Sequence[BoundLimit]) -> None:
        self.limits: tuple[BoundLimit, ...] = tuple(limits)
        self.names: tuple[str, ...] = tuple(limit.name for limit in limits)
        self._all_cost_one = all(limit.fixed_cost == 1 for limit in self.limits)
        self.reads_arguments: bool = any(limit.reads_arguments for limit in self.limits)
        self._has_owners = any(limit.has_owners for limit in self.limits)
        # Mutexes are named by their resources, so several of them may be the same bucket.
        self._may_coincide = len(set(self.names)) < len(self.names)
        if self._may_coincide:
            _require_one_owner(self.limits)
        self._terms: dict[tuple[BoundLimit, ...], LimitTerms | None] = {}

    def with_default(self, terms: WaitTerms) -> LimitSet:
        """Return the limit set with these terms for the limits that have none of their own."""
        limits = [limit.with_default(terms) for limit in self.limits]
        return self if all(limit in self.limits for limit in limits) else LimitSet(limits)

    @cached_property
    def signature(self) -> str:
        """A text that changes when the buckets, costs or terms of a call may change."""
        parts = [
            (
                limit.name,
                described_callable(limit.limit.key),
                described_callable(limit.limit.cost),
                "" if limit.limit.permit is None else described_callable(limit.limit.permit.owner),
                repr(limit.holding),
                limit.wait_terms.longest,
                limit.wait_terms.on_limit,
                limit.limit.charge_retries,
                limit.limit.on_missing_key,
                # As before without it, so that waiting jobs keep their limit set.
                *(() if limit.calls is None else (limit.calls.size,)),
                # A rate under the same name counts in other buckets. Permits differ by `holding`.
                *((limit.limit.rule.family,) if limit.limit.rule.shares_state else ()),
            )
            for limit in self.limits
        ]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def ask(self, arguments: Arguments, headers: Headers, on_skip: OnSkip) -> GatedCall:
        """Return the buckets a call uses, its cost in each (None if all are 1), and its terms.

        Each bucket occurs once: limits with the same bucket charge it their highest cost. Raises PayloadError if they
        have two owners.
        """
        buckets: list[BucketRef] = []
        costs: list[int] = []
        applied: list[BoundLimit] = []
        for limit in self.limits:
            key = limit.key(arguments, headers, on_skip)
            if key is not None:
                buckets.append(BucketRef(limit.name, key))
                costs.append(limit.cost(arguments, headers))
                applied.append(limit)
        if not buckets:
            return UNGATED
        if self._may_coincide and len(set(buckets)) < len(buckets):
            return _merged(buckets, costs, applied, arguments, headers)
        terms = self._terms_of(tuple(applied), arguments, headers)
        if self._all_cost_one or all(cost == 1 for cost in costs):
            return GatedCall(tuple(buckets), None, terms)
        return GatedCall(tuple(buckets), tuple(costs), terms)

    def _terms_of(self, applied: tuple[BoundLimit, ...], arguments: Arguments, headers: Headers) -> LimitTerms | None:
        if self._has_owners:
            return _terms(applied, [limit.permit_of(arguments, headers) for limit in applied])
        if applied not in self._terms:
            self._terms[applied] = _terms(applied, [limit.holding for limit in applied])
        return self._terms[applied]


def _merged(
    buckets: Sequence[BucketRef],
    costs: Sequence[int],
    applied: Sequence[BoundLimit],
    arguments: Arguments,
    headers: Headers,
) -> GatedCall:
    """Return the buckets of a call with equal buckets merged: the highest cost, and the permit held longest."""
    merged: dict[BucketRef, tuple[int, PermitTerms | None, BoundLimit]] = {}
    for ref, cost, limit in zip(buckets, costs, applied, strict=True):
        holding = limit.permit_of(arguments, headers)
        if ref in merged:
            other_cost, other, first = merged[ref]
            stricter = limit if first.calls is not None and limit.calls is None else first
            cost, holding, limit = max(cost, other_cost), _stricter(other, holding, ref), stricter
        merged[ref] = cost, holding, limit
    terms = _terms([limit for _, _, limit in merged.values()], [holding for _, holding, _ in merged.values()], applied)
    known_costs = tuple(cost for cost, _, _ in merged.values())
    return GatedCall(tuple(merged), None if all(cost == 1 for cost in known_costs) else known_costs, terms)


def _stricter(one: PermitTerms | None, other: PermitTerms | None, ref: BucketRef) -> PermitTerms | None:
    """Return how a permit of two limits is held. If one of them has no owner, the job alone holds it."""
    if one is None or other is None:
        return one or other
    if one.owner is not None and other.owner is not None and one.owner != other.owner:
        raise PayloadError(
            f"the limits {ref.limit!r} have the same key, {ref.key!r}, but two owners, {one.owner!r} and "
            f"{other.owner!r}; a job holds a permit once: let the keys differ or the owners be the same. Nothing was "
            "stored"
        )
    until = max(one.until, other.until, key=_HOLD_ORDER.index)
    return PermitTerms(until, None if one.owner is None or other.owner is None else one.owner)


_HOLD_ORDER = ("running", "until_final", "until_success", "batch")


def _require_one_owner(limits: Sequence[BoundLimit]) -> None:
    """Raise DeclarationError for limits that always have the same bucket, with two owners."""
    known: dict[tuple[str, object], object] = {}
    for limit in limits:
        owner = None if limit.limit.permit is None else limit.limit.permit.owner
        if owner is None:
            continue
        other = known.setdefault((limit.name, limit.limit.key), owner)
        if other != owner:
            raise DeclarationError(
                f"{limit.where} has the key {limit.limit.key!r} twice, with the owners {other!r} and {owner!r}; a job "
                "holds a permit once: give both the same owner="
            )


def _terms(
    applied: Sequence[BoundLimit], holdings: Sequence[PermitTerms | None], limits: Sequence[BoundLimit] | None = None
) -> LimitTerms | None:
    """Return the terms of a call: `applied` has a limit for each bucket, `limits` all if some buckets were merged."""
    limits = applied if limits is None else limits
    longest = min((limit.wait_terms.longest for limit in limits if limit.wait_terms.longest is not None), default=None)
    free = mask_where(
        not limit.limit.charge_retries and holding is None for limit, holding in zip(applied, holdings, strict=True)
    )
    holds = tuple(holdings) if any(holding is not None for holding in holdings) else ()
    calls = next((limit.calls for limit in applied if limit.calls is not None), None)
    if not holds and not free and longest is None and calls is None:
        return None
    if calls is not None:
        calls = replace(calls, buckets=mask_where(limit.calls is not None for limit in applied))
    # If one limit cancels and another discards, the job fails: a failure is reported, a cancellation is not.
    no_wait = [limit.wait_terms.on_limit for limit in limits if limit.wait_terms.longest == 0]
    patience = longest and longest + CLAIM_TIME
    return LimitTerms(holds, free, patience, cancels=bool(no_wait) and set(no_wait) == {"cancel"}, calls=calls)


def call_terms(task: str, chunk: Chunk | None) -> CallTerms | None:
    """Return what its limits need to count the calls of a task; None if a call is a job."""
    return None if chunk is None or chunk.size == 1 else CallTerms(task, chunk.size, NO_BUCKETS)


def bind_limits(
    limits: Sequence[Limit | str], shared: Mapping[str, Limit], task: str, payload: PayloadType, chunk: Chunk | None
) -> LimitSet:
    """Return the limit set of a task. An unnamed limit is named after its task and rule; a string names a shared one.

    Templates may name the fields of an only argument directly: `{tenant_id}` for `{order.tenant_id}`.
    """
    calls = call_terms(task, chunk)
    where = f"task {task!r}"
    return LimitSet(
        [
            BoundLimit(limit, name, payload.parameters, where, payload.fields, calls)
            for name, limit, _ in named_limits(limits, shared, where, task)
        ]
    )


class NamedLimit(NamedTuple):
    """A limit under its full name; `is_own` if it is named after the task or the queue that declares it."""

    name: str
    limit: Limit
    is_own: bool


def named_limits(
    limits: Sequence[Limit | str], shared: Mapping[str, Limit], where: str, prefix: str
) -> list[NamedLimit]:
    """Return declared limits with their names; one without a name is named after the `prefix` and its rule."""
    require_list(limits, where)
    named: list[NamedLimit] = []
    for limit in limits:
        if isinstance(limit, str):
            if limit not in shared:
                if (rate := suggested_limits(limit)) is not None:
                    raise DeclarationError(f"{where}: {limit!r} is a rate, not the name of a limit; write {rate}")
                raise DeclarationError(
                    f"{where} uses limit {limit!r}, which is not declared; declare it first: app.limit({limit!r}, …)"
                )
            named.append(NamedLimit(limit, shared[limit], is_own=False))
        elif not isinstance(limit, Limit):
            raise DeclarationError(
                f"{limit!r} in limits= of {where} is not a limit; use RateLimit(…), StrictRate(…), Mutex(…) or a name"
            )
        elif limit.name is not None:
            named.append(NamedLimit(limit.name, limit, is_own=False))
        else:
            # Neither its numbers nor its kind: a changed rate keeps its buckets.
            name, taken = f"{prefix}:{limit.rule.family}", {each.name for each in named}
            numbered = (name, *(f"{name}{number}" for number in range(2, 1000)))
            named.append(NamedLimit(next(each for each in numbered if each not in taken), limit, is_own=True))
    # A job may need several resources, and all mutexes share one name.
    names = [each.name for each in named if not each.limit.may_repeat]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise DeclarationError(f"{where} uses limit {', '.join(sorted(twice))} twice; once is enough")
    return named
