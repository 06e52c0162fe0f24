"""Views of records: fields of the same names, instants as datetimes where the view has them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import pytest

from headgate.clock import SECOND
from headgate.views import view_of


class Stored(msgspec.Struct, frozen=True):
    name: str
    started_at: int
    ended_at: int | None
    beat_at: int
    secret: str = "s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    name: str
    started_at: datetime
    ended_at: datetime | None
    beat_at: int
    state: str
    position: int | None = None


def test_a_view_has_the_fields_of_its_record_and_what_is_given() -> None:
    shown = view_of(Shown, Stored("a", 5 * SECOND, None, 7), state="alive", position=None)
    assert shown == Shown(
        name="a", started_at=datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), ended_at=None, beat_at=7, state="alive"
    )


def test_a_given_field_goes_before_that_of_the_record() -> None:
    assert view_of(Shown, Stored("a", 0, 0, 7), state="alive", position=None, name="b").name == "b"


def test_a_field_that_nothing_has_is_an_error_even_if_it_has_a_default() -> None:
    with pytest.raises(AttributeError, match="position"):
        view_of(Shown, Stored("a", 0, 0, 7), state="alive")


def test_a_view_of_a_view_keeps_its_instants() -> None:
    shown = view_of(Shown, Stored("a", 0, 0, 7), state="alive", position=None)
    assert view_of(Shown, shown) == shown
