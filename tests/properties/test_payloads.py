"""Any value of a supported type comes back equal from JSON, or is refused with an error that says so."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NamedTuple
from uuid import UUID

import attrs
import msgspec
import pydantic
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate import PayloadError
from headgate.tasks.payload import PayloadType
from headgate.tasks.values import first_difference
from tests.seeds import examples


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    sku: str
    price: Decimal
    notes: dict[str, float | None]


class Tag(msgspec.Struct):
    name: str
    at: datetime | None = None


@attrs.define
class Point:
    x: int
    y: float


class Pair(NamedTuple):
    left: int
    right: str


class Person(pydantic.BaseModel):
    name: str
    born: date | None
    ids: list[UUID]
    score: float
    share: Decimal


texts = st.text(st.characters(exclude_categories=())) | st.text()
zones = st.none() | st.timezones() | st.integers(-1439, 1439).map(lambda m: timezone(timedelta(minutes=m)))
moments = st.datetimes(timezones=zones, allow_imaginary=True)
numbers = st.floats() | st.integers()
FLAT: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, texts),
    (int, st.integers() | st.integers(2**60, 2**70)),
    (float, numbers),
    (bool, st.booleans()),
    (bytes, st.binary()),
    (datetime, moments),
    (date, st.dates()),
    (time, st.times(timezones=st.none() | zones)),
    (timedelta, st.timedeltas()),
    (UUID, st.uuids()),
    (Decimal, st.decimals()),
    (Colour, st.sampled_from(Colour)),
    (Literal["a", 1], st.sampled_from(["a", 1])),
    (Tag, st.builds(Tag, texts, st.none() | moments)),
    (Point, st.builds(Point, st.integers(), numbers)),
    (Pair, st.builds(Pair, st.integers(), texts)),
    (Line, st.builds(Line, texts, st.decimals(), st.dictionaries(texts, st.none() | numbers))),
    (
        Person,
        st.builds(
            Person.model_construct,
            name=texts,
            born=st.none() | st.dates(),
            ids=st.lists(st.uuids(), max_size=3),
            score=st.floats(),
            share=st.decimals(),
        ),
    ),
]
Wrap = tuple[Callable[[Any], Any], Callable[[st.SearchStrategy[Any]], st.SearchStrategy[Any]]]
WRAPS: list[Wrap] = [
    (lambda kind: kind, lambda values: values),
    (lambda kind: kind | None, lambda values: st.none() | values),
    (lambda kind: _of(list, kind), lambda values: st.lists(values, max_size=3)),
    (lambda kind: _of(tuple, (kind, ...)), lambda values: st.lists(values, max_size=3).map(tuple)),
    (lambda kind: _of(dict, (str, kind)), lambda values: st.dictionaries(texts, values, max_size=3)),
    (lambda kind: _of(list, kind | None), lambda values: st.lists(st.none() | values, max_size=3)),
]


def _of(container: Any, kinds: Any) -> Any:
    return container[kinds]


def there_and_back(kind: Any, value: Any) -> Any:
    def work(x: Any) -> Any: ...

    work.__annotations__ = {"x": kind, "return": kind}
    payload = PayloadType(work, "task 'work'")
    stored, _ = payload.encode((value,), {})
    stored.encode()
    assert "\x00" not in stored
    assert payload.decode_result(payload.encode_result(value)) is None or value is not None
    return payload.decode(stored)[1]["x"]


def has_no_json(value: Any) -> bool:
    """Whether something in it cannot be kept: no finite number, no UTF-8, or a time zone that counts in seconds."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, str):
        return any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, (datetime, time)):
        offset = value.utcoffset()
        return offset is not None and offset % timedelta(minutes=1) != timedelta(0)
    if isinstance(value, dict):
        return any(has_no_json(part) for pair in value.items() for part in pair)
    if isinstance(value, (list, tuple)):
        return any(has_no_json(part) for part in value)
    if isinstance(value, (Line, Tag, Point, Person)):
        names = type(value).__annotations__
        return any(has_no_json(getattr(value, name)) for name in names)
    return isinstance(value, int) and float_loses(value)


def float_loses(value: int) -> bool:
    return abs(value) > 2**53


@settings(max_examples=examples(100, 400))
@given(st.sampled_from(FLAT), st.sampled_from(WRAPS), st.data())
def test_a_value_of_a_supported_type_comes_back_equal_or_is_refused(
    flat: tuple[Any, st.SearchStrategy[Any]], wrap: Wrap, data: st.DataObject
) -> None:
    kind, value = wrap[0](flat[0]), data.draw(wrap[1](flat[1]))
    try:
        back = there_and_back(kind, value)
    except PayloadError:
        # A model refuses more: decimals that are no numbers, years that its dates do not have.
        assert has_no_json(value) or "Person(" in repr(value)
    else:
        assert first_difference(value, back) is None


anything = st.recursive(
    st.none() | st.booleans() | numbers | texts | st.binary() | st.decimals() | moments | st.uuids(),
    lambda values: (
        st.lists(values, max_size=4)
        | st.lists(values, max_size=3).map(tuple)
        | st.dictionaries(texts | st.integers() | st.none() | st.booleans(), values, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=examples(100, 400))
@given(anything)
@example({1: "a", "1": "b"})
@example({"a": {"b": (1,)}})
def test_without_an_annotation_a_value_comes_back_equal_or_is_refused(value: Any) -> None:
    try:
        back = there_and_back(Any, value)
    except PayloadError:
        assert not is_json(value)
    else:
        assert back == value
        assert type(back) is type(value)


def is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and not has_no_json(key) and is_json(item) for key, item in value.items())
    if isinstance(value, list):
        return all(is_json(item) for item in value)
    if isinstance(value, int):
        return True
    return value is None or (isinstance(value, (str, float)) and not has_no_json(value))


@settings(max_examples=examples(80, 300))
@given(st.sampled_from(FLAT), st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_whatever_is_stored_is_read_or_a_payload_error(flat: tuple[Any, Any], stored: bytes) -> None:
    def work(x: Any = None) -> None: ...

    work.__annotations__ = {"x": flat[0]}
    payload = PayloadType(work, "task 'work'")
    for text in (stored.decode("utf-8", "replace"), '{"x":' + stored.decode("utf-8", "replace") + "}"):
        try:
            payload.decode(text)
        except PayloadError:
            continue
