"""Rules that were set at run time: in words, by whom and when, and what the code says instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import astuple

from headgate.admin.pauses import MOST_CHANGES, last_of, provenance, whose
from headgate.errors import DeclarationError
from headgate.jobs.audit import AuditEntry, AuditFilter
from headgate.limits.kinds import load_rule
from headgate.limits.limit import AnyRule
from headgate.storage.live_rules import LimitSetting, LiveRules
from headgate.storage.store import Store


@dataclass(frozen=True, slots=True)
class SetRule:
    """A rule that was set for `keys`; `declared` is that of the code, None if this program does not declare the limit.

    `by` and `at` are None if the audit entry has been pruned.
    """

    rule: str
    keys: str
    declared: str | None
    by: str | None
    at: datetime | None

    def __str__(self) -> str:
        code = "" if self.declared is None else f"; the code says {self.declared}"
        return f"set for {self.keys}{provenance(self.by, self.at)}{code}"


class ListedSetting(LimitSetting, frozen=True, array_like=False):
    """A setting with its rule in words, that of the code, and who set it when; null if that is not known."""

    words: str | None = None
    declared: str | None = None
    set_by: str | None = None
    set_at: datetime | None = None


class SetRules:
    """The settings in force at one moment, with who made them; the changes of each limit are read once."""

    def __init__(self, store: Store, live: LiveRules) -> None:
        self.live = live
        self._store = store
        self._changes: dict[str, Sequence[AuditEntry]] = {}

    async def listed(self, setting: LimitSetting, declared: AnyRule | None) -> ListedSetting:
        """Return a setting as a list shows it."""
        rule = await self.of(setting, declared)
        facts = () if rule is None else (rule.rule, rule.declared, rule.by, rule.at)
        return ListedSetting(*astuple(setting), *facts)

    async def of(self, setting: LimitSetting, declared: AnyRule | None) -> SetRule | None:
        """Return the rule of a setting; None if it has none."""
        if setting.rule is None:
            return None
        if setting.limit not in self._changes:
            changes = AuditFilter(kind="limit", subject=setting.limit, count=MOST_CHANGES)
            self._changes[setting.limit] = await self._store.audit_log(changes)
        by, at = last_of(self._changes[setting.limit], setting, "set")
        try:
            rule = load_rule(setting.rule).describe()
        except DeclarationError:
            rule = "a rule that this release cannot read"
        return SetRule(rule, whose(setting), None if declared is None else declared.describe(), by, at)
