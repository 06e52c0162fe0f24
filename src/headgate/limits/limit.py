"""A limit: a rule, declared with the key that it counts by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypedDict, get_args

from headgate.arguments import parse_count, parse_duration
from headgate.clock import SECOND, Duration
from headgate.errors import CostExceedsLimit, DeclarationError
from headgate.keywords import names_keywords
from headgate.limits.key import Header
from headgate.limits.rate import parse_rate
from headgate.limits.rule import Rule

MAX_NAME = 100

Key = str | Callable[..., object] | Header | None
Cost = int | str | Callable[..., int]
OnLimit = Literal["wait", "discard", "cancel"]
WaitTermsSource = Literal["limit", "queue", "app", "default"]
OnStoreError = Literal["run", "wait", "share"]
OnKeyError = Literal["run", "fail"]
OnMissingKey = Literal["run", "shared", "fail"]

HoldUntil = Literal["running", "until_final", "until_success"]
"""The moment at which a job releases its permit: after each attempt, when it is final, or when it has succeeded."""

AnyRule = Rule[Any]


class PermitOptions(NamedTuple):
    """How a job holds a permit: until when, and under which owner (None: its own)."""

    hold: HoldUntil
    owner: Key


class LimitOptions(TypedDict, total=False):
    """The options of every limit, whatever its rule; see `Limit`."""

    key: Key
    name: str | None
    cost: Cost
    on_limit: OnLimit | None
    max_wait: Duration | None
    store: str | object | None
    on_store_error: OnStoreError
    sharers: int | None
    on_key_error: OnKeyError
    on_missing_key: OnMissingKey


class SpelledOptions(TypedDict, total=False):
    """The options of a rule beside its rate, as text can give them; None if not given."""

    burst: int | None
    slices: int | None


class RateOptions(LimitOptions, total=False):
    """The options of every limit that counts starts."""

    charge_retries: bool
    per_call: bool


@dataclass(frozen=True)
class Limit:
    """The options that all limits share.

    `key` names the bucket a job uses: a template over its arguments (`"{tenant_id}"`, `"{order.tenant_id}"`,
    `"{0}"`), a callable that receives the arguments it names, `header("tenant")`, or None for one bucket for all.
    `name` (up to 100 characters) makes it one budget for every task that uses the name; without a name the limit
    belongs to its task. `cost` (default 1) is what one start costs: a number, a template or a callable.

    `on_limit`: a job without budget waits (`"wait"`), fails at once (`"discard"`) or is cancelled at once (`"cancel"`).
    `max_wait` (seconds): a job that would wait longer fails. A limit that sets neither has both from the job's queue,
    else from the app; default: jobs wait without a maximum, which `on_limit="wait"` alone says, too.
    `on_missing_key`: a job with an empty key runs without this limit, with one warning (`"run"`, default), shares the
    bucket `"global"` (`"shared"`), or is refused at enqueue (`"fail"`). `on_key_error`: the same for a key function
    that raises (`"run"` or `"fail"`).

    `store` keeps the buckets in another store (`"redis://…"`, `"postgresql://…"`, or a BucketStore), to share them with
    other programs. While that store cannot be reached, jobs run unlimited with a warning (`on_store_error="run"`,
    default), wait (`"wait"`), or use an equal share: `on_store_error="share", sharers=4` is a quarter.
    `charge_retries=False` does not charge retries, for limits that count starts. With `per_call=True` they are charged
    once for each call of a chunked task, not once for each job.
    """

    may_repeat: ClassVar[bool] = False
    """Whether several limits of one task may have the same name; their keys distinguish them."""

    rule: AnyRule
    _: KW_ONLY
    key: Key = None
    name: str | None = None
    cost: Cost = 1
    on_limit: OnLimit | None = None
    max_wait: Duration | None = None
    store: str | object | None = field(default=None, repr=False)  # a URL may hold a password
    on_store_error: OnStoreError = "run"
    sharers: int | None = None
    on_key_error: OnKeyError = "run"
    on_missing_key: OnMissingKey = "run"
    charge_retries: bool = True
    per_call: bool = False

    def __init_subclass__(cls) -> None:
        if cls.__module__.startswith("headgate."):  # The arguments of a user's class are their own.
            names_keywords(cls)

    @classmethod
    def spelled(cls, text: str, like: AnyRule | None, options: SpelledOptions) -> Limit:
        """Return the limit that `text` means; options left out are as in `like`. Raises DeclarationError."""
        raise DeclarationError(f"a {cls.__name__} is set from code: app.admin.limits.set(name, {cls.__name__}(…))")

    @property
    def permit(self) -> PermitOptions | None:
        """How a job holds a permit; None for limits that count starts, which are not held."""
        return None

    def __post_init__(self) -> None:
        if self.name is not None:
            require_limit_name(self.name)
        for option, choices in _CHOICES.items():
            if getattr(self, option) not in choices:
                raise DeclarationError(
                    f"limit: {option}={getattr(self, option)!r} must be one of {', '.join(map(repr, choices))}"
                )
        wait_terms(self.on_limit, self.max_wait, "a limit", "limit")
        if self.per_call:
            self._check_per_call()
        self.rule.require_bounded()
        share = self._share()
        if isinstance(self.cost, int):
            parse_count(self.cost, "cost", "a limit")
            for rule, when in ((self.rule, ""), (share, f"while its store is away, with sharers={self.sharers}: ")):
                try:
                    if rule is not None:
                        rule.check_cost(self.cost)
                except CostExceedsLimit as error:
                    raise DeclarationError(f"{when}{error}") from None

    def _check_per_call(self) -> None:
        """Raise DeclarationError if the limit cannot count calls."""
        if self.per_call is not True:
            raise DeclarationError(f"per_call={self.per_call!r:.80} of a limit must be True or False")
        if self.rule.holds_permits:
            raise DeclarationError(
                f"per_call=True is for limits that count starts; {type(self).__name__} counts running jobs: "
                "leave it out"
            )
        if not isinstance(self.cost, int):
            raise DeclarationError(
                f"per_call=True of a limit with cost={self.cost!r:.80}: a call has the arguments of many jobs; write a "
                "number as cost="
            )
        if self.store is not None:
            raise DeclarationError(
                "per_call=True of a limit with store=: calls are counted in the store of the jobs only; leave one of "
                "them out"
            )
        if not self.charge_retries:
            raise DeclarationError(
                "per_call=True of a limit with charge_retries=False: a retry is a call, too; leave one of them out"
            )

    def _share(self) -> AnyRule | None:
        """Return the rule while the store is away, if there is one. Raises DeclarationError."""
        if self.on_store_error != "share":
            if self.sharers is not None:
                raise DeclarationError(f'sharers={self.sharers!r} of a limit is for on_store_error="share"')
            return None
        if self.sharers is None:
            raise DeclarationError(
                'limit: on_store_error="share" needs sharers=, how many share it: all workers on one database are one, '
                "and each process with its own limiter is one"
            )
        share = self.rule.divided(parse_count(self.sharers, "sharers", "a limit"))
        share.require_bounded()
        return share


def share_of(limit: Limit) -> Limit:
    """Return the limit that one sharer uses while its store is away."""
    assert limit.sharers is not None
    return changed(limit, rule=limit.rule.divided(limit.sharers), store=None)


class WaitTerms(NamedTuple):
    """Whether, and how long (microseconds; None: without a maximum), jobs wait for a limit, and what sets it."""

    on_limit: OnLimit = "wait"
    max_wait: int | None = None
    set_by: WaitTermsSource = "default"

    @property
    def longest(self) -> int | None:
        """How long a job waits at most (microseconds): 0 if it does not wait, None without a maximum."""
        return self.max_wait if self.on_limit == "wait" else 0

    def describe(self) -> str | None:
        """Return the terms and what sets them in words; None for the default."""
        if self.set_by == "default":
            return None
        how = self.on_limit if self.max_wait is None else f"waits at most {self.max_wait / SECOND:g} s"
        return how if self.set_by == "limit" else f"{how}, by the {self.set_by}"


def wait_terms(
    on_limit: OnLimit | None, max_wait: Duration | None, where: str, set_by: WaitTermsSource
) -> WaitTerms | None:
    """Return the terms that two options set; None if they set none. Raises DeclarationError if they do not fit."""
    if on_limit is not None and on_limit not in get_args(OnLimit):
        raise DeclarationError(
            f"{where}: on_limit={on_limit!r} must be one of {', '.join(map(repr, get_args(OnLimit)))}"
        )
    if max_wait is None:
        return None if on_limit is None else WaitTerms(on_limit, None, set_by)
    if on_limit not in (None, "wait"):
        raise DeclarationError(
            f"max_wait={max_wait!r} of {where} says how long to wait, but on_limit={on_limit!r} does not wait"
        )
    longest = parse_duration(max_wait, "max_wait", where)
    if longest == 0:
        raise DeclarationError(f"max_wait={max_wait!r} of {where} must be above 0; use on_limit='discard' for 0")
    return WaitTerms("wait", longest, set_by)


def require_limit_name(name: object) -> None:
    """Raise DeclarationError unless `name` is a valid name of a limit."""
    # In the address of a page, . and .. are no names.
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable() or name in (".", ".."):
        raise DeclarationError(f"limit name {name!r:.80} must be 1 to {MAX_NAME} printable characters, but not . or ..")


def require_list(limits: object, where: str) -> None:
    """Raise DeclarationError unless `limits` is a list."""
    if isinstance(limits, Limit):
        example = f"limits=[{type(limits).__name__}(…)]"
        raise DeclarationError(f"{where}: limits= is one limit, not a list of limits; write {example}")
    if isinstance(limits, str):
        example = suggested_limits(limits) or f"limits=[{limits!r:.80}]"
        raise DeclarationError(f"{where}: limits={limits!r:.80} is not a list; write {example}")
    if not isinstance(limits, Sequence):
        raise DeclarationError(f"{where}: limits={limits!r:.80} is not a list; write limits=[…]")


def suggested_limits(text: str) -> str | None:
    """Return what to write instead of a limit's name that is the text of a rate; None for any other name."""
    try:
        parse_rate(text, None)
    except DeclarationError:
        return None
    return f'limits=[StrictRate("{text}")] or limits=[RateLimit("{text}")]'


_CHOICES = {
    "on_store_error": get_args(OnStoreError),
    "on_key_error": get_args(OnKeyError),
    "on_missing_key": get_args(OnMissingKey),
}


def changed(limit: Limit, **fields: object) -> Limit:
    """Return a copy of the limit with these fields changed; they are not checked."""
    # The constructor takes a rate, not the fields, so `replace` does not work.
    copied = copy(limit)
    for name, value in fields.items():
        object.__setattr__(copied, name, value)
    return copied
