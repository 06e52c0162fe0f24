"""Conversion of triggers to and from the text that is stored."""

from __future__ import annotations

import msgspec

from headgate.errors import DeclarationError
from headgate.schedules.calendar import Calendar
from headgate.schedules.cron import Cron
from headgate.schedules.every import Every
from headgate.schedules.restricted import CodeRestrictedTrigger, RestrictedTrigger
from headgate.schedules.trigger import Trigger


class CodeOnlyTrigger(msgspec.Struct, frozen=True, tag_field="kind", tag="own"):
    """The stored form of a custom trigger, which exists only in the code that declares it."""

    description: str

    def describe(self) -> str:
        return self.description


StoredTrigger = Cron | Every | Calendar | RestrictedTrigger | CodeOnlyTrigger

_decode = msgspec.json.Decoder(StoredTrigger).decode


def is_storable(trigger: Trigger) -> bool:
    """Return whether every node can load the trigger; a custom one exists only in the code that declares it."""
    return isinstance(trigger, Cron | Every | Calendar | RestrictedTrigger)


def dump_trigger(trigger: Trigger) -> str:
    """Return the trigger as JSON, with its kind as the tag; equal triggers give the same text."""
    stored = trigger if is_storable(trigger) else CodeOnlyTrigger(trigger.describe())
    return msgspec.json.encode(stored).decode()


def load_trigger(text: str) -> StoredTrigger:
    """Return the trigger from the text of `dump_trigger`. Raises DeclarationError if this version cannot read it."""
    try:
        found: StoredTrigger = _decode(text)
    except msgspec.DecodeError as error:
        raise DeclarationError(f"{text[:200]!r} is not a trigger of this version: {error}") from None
    return found


def counted_from(trigger: Trigger, instant: int) -> Trigger:
    """Return the trigger with `instant` as its start, if it needs a start and has none."""
    if isinstance(trigger, Every | Calendar | RestrictedTrigger | CodeRestrictedTrigger):
        return trigger.starting(instant)
    return trigger
