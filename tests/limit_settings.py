"""Setting limits at run time as a whole, for tests that care about nothing but what is set then."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.jobs.audit import AuditRecord
from headgate.storage.live_rules import LimitSetting
from headgate.storage.store import Store


async def change(
    store: Store, setting: LimitSetting, *, remove: bool = False, audit_record: AuditRecord | None = None
) -> None:
    """Store this setting in place of what is set, or remove that."""
    becomes = replace(setting, rule=None, is_paused=False, tier=None) if remove else setting
    await store.edit_setting(setting, lambda _: becomes, audit_record=audit_record)
