"""The rules in force: a setting made at run time takes precedence over the declared rule; the most specific first.

Live releases may declare one limit with different numbers. The newest declaration is stored, and is in force on all
nodes and in all plain code, whatever their own code declares: a key has one budget, and never that of two releases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Literal

import msgspec
from msgspec.structs import replace

from headgate.errors import DeclarationError
from headgate.jobs.job import BucketRef
from headgate.jobs.limit_sets import LIMIT_SUBJECT
from headgate.limits.kinds import load_rule
from headgate.limits.limit import AnyRule
from headgate.storage.driver import Transaction
from headgate.storage.fetched import FetchedStarts
from headgate.storage.records import DECLARATION_LIVES
from headgate.storage.stored_rows import RowDecoder, note_unreadable

Scope = Literal["all", "key", "pattern", "tier", "member", "declared"]


class LimitSetting(msgspec.Struct, frozen=True, array_like=True):
    """A setting of a limit that was made at run time, stored until it is unset.

    `scope` selects the keys: `all` of them, one `key`, those that match a `pattern` (`stripe:*`), or those of a `tier`.
    `member` puts the keys that match the pattern `target` into the tier `tier`; `pattern_of` makes a pattern of a
    single key. `rule` is a stored rule that replaces the declared one. While it `is_paused`, nothing starts. `declared`
    is no setting: its `rule` is what the newest release declares.
    """

    limit: str
    scope: Scope
    target: str = ""
    rule: str | None = None
    is_paused: bool = False
    tier: str | None = None


EditSetting = Callable[[LimitSetting], LimitSetting]
"""Returns the new setting for the current one."""


def edited(settings: Iterable[LimitSetting], about: LimitSetting, edit: EditSetting) -> LimitSetting | None:
    """Return the setting to store for the limit, scope and target of `about`; None if it is already stored so."""
    place = (about.limit, about.scope, about.target)
    nothing = replace(about, rule=None, is_paused=False, tier=None)
    known = next((each for each in settings if (each.limit, each.scope, each.target) == place), nothing)
    becomes = edit(known)
    return None if becomes == known else becomes


class LiveRules:
    """All settings of one store, for lookup by bucket."""

    def __init__(self, settings: Iterable[LimitSetting] = ()) -> None:
        self._limits: dict[str, _LimitSettings] = {}
        # The longest patterns first, as they are looked up: sorted once, as there may be thousands.
        for setting in sorted(settings, key=lambda each: (-len(each.target), each.target)):
            self._limits.setdefault(setting.limit, _LimitSettings()).add(setting)
        newest = [(limit, each.newest) for limit, each in self._limits.items()]
        self._families = {limit: each.rule.family for limit, each in newest if each is not None and each.rule}
        # Those of the last call: a node passes the same ones to each claim.
        self._last_usable: tuple[Mapping[str, AnyRule], Mapping[str, AnyRule]] = {}, {}

    def rule(self, ref: BucketRef, declared: AnyRule) -> AnyRule:
        """Return the rule of `bucket`: that of its key, its tier, its pattern, or all.

        If none is set, it is what the newest release declares; else `declared`, which this process declares. A rule
        of another family than the declared one is of an older release, and does not apply.
        """
        limit = self._limits.get(ref.limit)
        if limit is None:
            return declared
        found = limit.rule(ref.key, _family(declared))
        if found is None:
            return declared
        # Its starts are fetched from where those of the declared rule are.
        return FetchedStarts(found) if isinstance(declared, FetchedStarts) else found

    def usable(self, rules: Mapping[str, AnyRule]) -> Mapping[str, AnyRule]:
        """Return the rules, without limits that the newest release declares as another family: other states."""
        if self._last_usable[0] is not rules:
            other = {name for name, found in self._families.items() if name in rules and _family(rules[name]) != found}
            usable = {name: rule for name, rule in rules.items() if name not in other} if other else rules
            self._last_usable = rules, usable
        return self._last_usable[1]

    def is_paused(self, ref: BucketRef) -> bool:
        """Whether nothing may start on the bucket until it is resumed."""
        return self.pausing(ref) is not None

    def pausing(self, ref: BucketRef) -> LimitSetting | None:
        """Return the most specific setting that pauses the bucket; other settings may pause it as well."""
        limit = self._limits.get(ref.limit)
        return None if limit is None else limit.pausing(ref.key)

    def setting(self, ref: BucketRef, declared: AnyRule | None) -> LimitSetting | None:
        """Return the setting whose rule the bucket has; None if it has the declared rule."""
        limit = self._limits.get(ref.limit)
        return None if limit is None else limit.setting(ref.key, None if declared is None else declared.family)


def _family(rule: AnyRule) -> str:
    return (rule.real if isinstance(rule, FetchedStarts) else rule).family


class _LimitSettings:
    """The settings of one limit. A longer pattern is more specific than a shorter one."""

    def __init__(self) -> None:
        self._all: _Setting | None = None
        self.newest: _Setting | None = None
        self._keys: dict[str, _Setting] = {}
        self._tiers: dict[str, _Setting] = {}
        self._patterns: dict[str, _Setting] = {}
        self._tier_of_key: dict[str, str] = {}
        self._tier_of_pattern: dict[str, str] = {}

    def add(self, setting: LimitSetting) -> None:
        made = _Setting(setting)
        match setting.scope:
            case "all":
                self._all = made
            case "declared":
                self.newest = made
            case "key":
                self._keys[setting.target] = made
            case "tier":
                self._tiers[setting.target] = made
            case "pattern":
                self._patterns[setting.target] = made
            case "member" if setting.tier is not None:
                key = key_of_pattern(setting.target)
                if key is None:
                    self._tier_of_pattern[setting.target] = setting.tier
                else:
                    self._tier_of_key[key] = setting.tier

    def rule(self, key: str, family: str) -> AnyRule | None:
        found = (each.rule for each in self._about(key, and_newest=True) if each.applies_to(family))
        return next(found, None)

    def setting(self, key: str, family: str | None) -> LimitSetting | None:
        return next((setting.stored for setting in self._about(key) if setting.applies_to(family)), None)

    def pausing(self, key: str) -> LimitSetting | None:
        return next((setting.stored for setting in self._about(key, and_newest=True) if setting.is_paused), None)

    def _about(self, key: str, *, and_newest: bool = False) -> Iterable[_Setting]:
        """Yield the settings for a key, the most specific first; `and_newest` also the newest declaration."""
        if key in self._keys:
            yield self._keys[key]
        tier = self._tier_of_key.get(key)
        if tier is None:
            tier = next((each for pattern, each in self._tier_of_pattern.items() if fnmatchcase(key, pattern)), None)
        if tier is not None and tier in self._tiers:
            yield self._tiers[tier]
        for pattern, setting in self._patterns.items():
            if fnmatchcase(key, pattern):
                yield setting
        if self._all is not None:
            yield self._all
        if and_newest and self.newest is not None:
            yield self.newest


class _Setting:
    __slots__ = ("is_paused", "rule", "stored")

    def __init__(self, setting: LimitSetting) -> None:
        self.stored = setting
        self.is_paused = setting.is_paused
        self.rule: AnyRule | None = None
        if setting.rule is None:
            return
        try:
            self.rule = load_rule(setting.rule)
        except DeclarationError as error:
            # It may be stricter than the declared rule, so nothing starts until it can be read or is unset.
            self.is_paused = True
            note_unreadable("setting of limit", f"{setting.limit} ({setting.scope} {setting.target})", f"rule: {error}")

    def applies_to(self, family: str | None) -> bool:
        """Whether it has a rule of the family; None: of any."""
        return self.rule is not None and family in (None, self.rule.family)


def is_pattern(target: str) -> bool:
    """Whether it can match several keys: it has a `*`, `?` or `[`."""
    return any(sign in target for sign in "*?[")


def pattern_of(key: str) -> str:
    """Return the pattern that matches this key only: `order[[]5]` for `order[5]`."""
    return _SIGN.sub("[\\1]", key)


def key_of_pattern(pattern: str) -> str | None:
    """Return the key from which `pattern_of` made a pattern; None for a pattern of several keys."""
    key = _SINGLE.sub("\\1", pattern)
    return key if pattern_of(key) == pattern else None


_SIGN = re.compile(r"([*?[])")
_SINGLE = re.compile(r"\[([*?[])\]")


class _LimitSet(msgspec.Struct):
    task: str
    signature: str


_SETTINGS = RowDecoder(LimitSetting, "setting of limit", scope="member")
_LIMIT_SETS = RowDecoder(_LimitSet, "limit_set")


class CachedRules:
    """The rules in force and the newest limit sets as this process last read them."""

    def __init__(self) -> None:
        self.rules: LiveRules = LiveRules()
        self.limit_sets: Mapping[str, str] = {}
        """The newest limit set of each subject."""
        self._revision = 0

    def forget(self) -> None:
        """Read them again before the next use: they may be from a transaction that was rolled back."""
        self._revision = -1

    async def refresh(self, tx: Transaction, revision: int | None = None) -> None:
        """Read them again unless they have this revision (None: the stored one)."""
        if revision is None:
            revision = await tx.value("revision")
        before = self._revision
        if revision == before:
            return
        rules, limit_sets = LiveRules(await read_settings(tx)), await read_limit_sets(tx)
        # Another transaction may have read newer ones meanwhile, and a claim may be about to charge by them.
        if self._revision == before or self._revision < revision:
            self.rules, self.limit_sets, self._revision = rules, limit_sets, revision


async def read_limit_sets(tx: Transaction) -> Mapping[str, str]:
    """Return the newest limit set of each subject."""
    return {limit_set.task: limit_set.signature for limit_set in await tx.fetch(_LIMIT_SETS, "limit_sets")}


async def read_settings(tx: Transaction, lives: int = DECLARATION_LIVES) -> list[LimitSetting]:
    """Return the settings made at run time, and the newest declaration of each limit that was noted in `lives`."""
    return await tx.fetch(_SETTINGS, "settings", subject=LIMIT_SUBJECT, since=tx.now - lives)
