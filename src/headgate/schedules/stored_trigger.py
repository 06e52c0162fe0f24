"""Triggers as text: how the trigger of a schedule is stored."""

from __future__ import annotations

import msgspec

from headgate.errors import DeclarationError
from headgate.schedules.calendar import Calendar
from headgate.schedules.cron import Cron
from headgate.schedules.every import Every
from headgate.schedules.trigger import Trigger


class CodeOnlyTrigger(msgspec.Struct, frozen=True, tag_field="kind", tag="own"):
    """A trigger that only the code knows which declares it."""

    description: str

    def describe(self) -> str:
        return self.description


StoredTrigger = Cron | Every | Calendar | CodeOnlyTrigger

_decode = msgspec.json.Decoder(StoredTrigger).decode


def dump_trigger(trigger: Trigger) -> str:
    """The trigger as JSON, with its kind as the tag; triggers that are equal give the same text."""
    stored = trigger if isinstance(trigger, Cron | Every | Calendar) else CodeOnlyTrigger(trigger.describe())
    return msgspec.json.encode(stored).decode()


def load_trigger(text: str) -> StoredTrigger:
    """What `dump_trigger` made text of. Raises DeclarationError for what this version cannot read."""
    try:
        found: StoredTrigger = _decode(text)
    except msgspec.DecodeError as error:
        raise DeclarationError(f"{text[:200]!r} is no trigger that this version knows: {error}") from None
    return found


def counted_from(trigger: Trigger, instant: int) -> Trigger:
    """The trigger as it runs: counted from that instant if it has to be counted from somewhere."""
    return trigger.starting(instant) if isinstance(trigger, Every | Calendar) else trigger
