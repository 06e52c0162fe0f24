"""Each supported type comes back as it was passed, and what would not is refused with the argument and the path."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest

from headgate import DeclarationError, PayloadError
from headgate.tasks.payload import PayloadType
from headgate.tasks.values import shown


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


class Kind(StrEnum):
    BOOK = "book"


@dataclass
class Line:
    sku: str
    price: Decimal
    tags: tuple[str, ...] = ()


class Address(pydantic.BaseModel):
    street: str
    since: date
    zip_code: str | None = pydantic.Field(default=None, alias="zipCode")
    share: Decimal = Decimal("0.10")


class StrictAddress(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    street: str
    at: datetime
    id: UUID


@dataclass
class Order:
    lines: list[Line]
    ship_to: Address | None = None
    placed_at: datetime | None = None


class Moment(datetime):
    """As pendulum.DateTime, and as the datetime of a test that freezes time."""


class Day(date):
    """As pendulum.Date."""


class Clock(time):
    """As pendulum.Time."""


class Span(timedelta):
    """As pendulum.Duration."""


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


@attrs.define
class Point:
    x: int
    y: float


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Pair(NamedTuple):
    left: int
    right: str


@dataclass(eq=False)
class Opaque:
    value: int


class Text(str):
    __slots__ = ()


class Safe(str):
    """As Django's `render_to_string` returns it."""

    __slots__ = ()

    def __str__(self) -> str:
        return self


ADDRESS = Address(street="Main", since=date(2026, 1, 1), zipCode="123")
BOTH = timezone(timedelta(hours=2))


def payload_of(kind: Any, result: Any = Any) -> PayloadType:
    def work(x: Any) -> Any: ...

    work.__annotations__ = {"x": kind, "return": result}
    return PayloadType(work, "task 'work'")


def there_and_back(kind: Any, value: Any) -> Any:
    payload = payload_of(kind)
    stored, _ = payload.encode((value,), {})
    return payload.decode(stored)[1]["x"]


def named(value: Any) -> str:
    """A value in a test's name, the same in every process: without an address, or the order of a set."""
    return re.sub(r" at 0x[0-9a-f]+", "", shown(sorted(value) if isinstance(value, frozenset) else value))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 10**30),
        (int, -(2**63) - 1),
        (float, 1e-300),
        (float, 3),
        (str, "a\x00b"),
        (str, Text("sub")),
        (str, Safe("<b>")),
        (list[str], [Safe("<b>")]),
        (str, Kind.BOOK),
        (int, Size.LARGE),
        (Any, {"a": [1, 2.5, None, True]}),
        (object, [1]),
        (list[object], [1, "a"]),
        (bytes, b"\x00\xff"),
        (datetime, datetime(2026, 1, 1, 12, 0, 0, 1)),  # noqa: DTZ001
        (datetime, datetime(2026, 1, 1, 12, tzinfo=BOTH)),
        (datetime, datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Rome"), fold=1)),
        (datetime, datetime.max),  # noqa: DTZ901
        (date, date.min),
        (time, time(1, 2, 3, 4)),
        (time, time(1, 2, tzinfo=UTC)),
        (timedelta, timedelta(days=-3, microseconds=7)),
        (timedelta, timedelta.max),
        (UUID, UUID(int=7)),
        (Decimal, Decimal("1.10")),
        (Decimal, Decimal("-Infinity")),
        (Colour, Colour.RED),
        (Size, Size.LARGE),
        (set[int], {3, 1}),
        (frozenset[str], frozenset("ab")),
        (tuple[int, str], (1, "a")),
        (dict[int, str], {1: "a"}),
        (dict[UUID, date], {UUID(int=1): date(2026, 1, 1)}),
        (Literal["a", 1], "a"),
        (int | str | None, None),
        (Annotated[int, msgspec.Meta(gt=0)], 1),
        (Cat | Dog, Dog("Rex")),
        (list[Order], [Order([Line("x", Decimal("9.90"), ("a",))], ADDRESS, datetime(2026, 1, 1, tzinfo=UTC))]),
        (Point, Point(1, 2.5)),
        (Movie, {"title": "Heat"}),
        (Pair, Pair(1, "b")),
        # An equal value of the plain type, also in the hour that a clock repeats.
        (datetime, Moment(2026, 1, 1, 8, 0, 0, 1)),
        (datetime, Moment(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Rome"))),
        (date, Day(2026, 1, 1)),
        (time, Clock(8, 30, 0, 1)),
        (timedelta, Span(days=-1, microseconds=1)),
        (list[Order], [Order([], placed_at=Moment(2026, 1, 1, tzinfo=UTC))]),
        (Address, ADDRESS),
        (Address | None, None),
        (list[Address], [ADDRESS]),
        (dict[str, Address], {"home": ADDRESS}),
        (
            StrictAddress,
            StrictAddress(street="s", at=datetime(2026, 1, 1), id=UUID(int=1)),  # noqa: DTZ001
        ),
    ],
    ids=named,
)
def test_a_value_comes_back_as_its_annotated_type(kind: Any, value: Any) -> None:
    back = there_and_back(kind, value)
    assert back == value or back.astimezone(UTC) == value.astimezone(UTC)
    if isinstance(value, datetime):
        assert (back.tzinfo is None) == (value.tzinfo is None)
    if isinstance(kind, type) and not hasattr(kind, "__origin__") and kind not in (object, Any, Movie):
        assert type(back) is kind


class Plan(str, Enum):  # noqa: UP042  # one whose text is not its value
    FREE = "free"


def test_the_arguments_that_limits_count_by_are_those_that_the_handler_gets() -> None:
    """As given, a plan of an enum class and its text would be two keys of one limit, though they are the same job."""

    def work(plan: str, share: float, page: int = 1) -> None: ...

    payload = PayloadType(work, "task 'work'")
    stored, counted = payload.encode((Plan.FREE, 3), {})
    assert {name: f"{value}" for name, value in counted.items()} == {"plan": "free", "share": "3.0", "page": "1"}
    assert counted == payload.arguments(stored)


def test_a_decimal_that_is_no_number_comes_back_even_inside_of_something() -> None:
    back = there_and_back(list[Line], [Line("x", Decimal("NaN"))])
    assert back[0].price.is_nan()


def test_a_class_that_is_not_compared_by_value_is_compared_by_its_fields() -> None:
    assert there_and_back(Opaque, Opaque(3)).value == 3


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (int, "1", r"argument 'x' of task 'work' does not fit its annotation: Expected `int`, got `str`"),
        (int, True, "got `bool`"),
        (str, b"a", r"b'a' comes back as 'YQ=='"),
        (str, datetime(2026, 1, 1), "comes back as '2026-01-01T00:00:00'"),  # noqa: DTZ001
        (float | None, float("nan"), "nan comes back as None"),
        (float | None, float("inf"), "inf comes back as None"),
        (float, float("nan"), "got `null`"),
        (float, 2**63 + 1, "comes back as 9.2"),
        (list[float | None], [0.0, float("nan")], r"at x\[1\]: nan comes back as None"),
        (Any, {1: "a"}, r"\{1: 'a'\} comes back as \{'1': 'a'\}"),
        (Any, {"a": {"b": (1, 2)}}, r"at x\['a'\]\['b'\]: \(1, 2\) comes back as \[1, 2\]"),
        (Any, {1: "a", "1": "b"}, "does not survive"),
        (Any, Text("sub"), "does not survive"),
        (Any, ADDRESS, "annotate its type"),
        (Sequence[int], (1, 2), r"\(1, 2\) comes back as \[1, 2\]"),
        (Movie, {"title": "Heat", "stars": 5}, "does not survive"),
        (list[int], ["a"], r"at x\[0\]: Expected `int`, got `str`"),
        (Order, Order([Line("x", "cheap")]), r"at x\.lines\[0\]\.price"),  # type: ignore[arg-type]
        (Order, {"lines": [{"sku": 1}]}, r"at x\.lines\[0\]\.sku: Expected `str`, got `int`"),
        (Annotated[int, msgspec.Meta(gt=0)], 0, ">= 1"),
        (Literal["a"], "b", "Invalid enum value 'b'"),
        (Any, [1, {"a": object()}], r"at x\[1\]\['a'\]: a value of the type object has no JSON form"),
        (Any, {None: 1}, "cannot be stored as JSON: a key of the type NoneType has no JSON form"),
        (dict[bool, int], {True: 1}, "cannot be stored as JSON: a key of the type bool has no JSON form"),
        (dict[str, Any], {"a": {(1, 2): 3}}, r"at x\['a'\]: a key of the type tuple has no JSON form"),
        (Any, "\ud800", "surrogates"),
        (list[str], ["fine", "\udfff"], r"at x\[1\]: .*surrogates"),
        (Any, 10**100_000, "4300 digits"),
        (list[int], [1, 10**100_000], r"at x\[1\]: .*4300 digits"),
        (Any, "x" * 10_000_000, "10000008 bytes as JSON, more than 262144"),
        (Address, Address.model_construct(street="s", since="not a day"), "not a day"),
        (Address, {"street": "s", "since": "2026-13-01"}, "since: Input should be a valid date"),
    ],
    ids=named,
)
def test_a_value_that_would_come_back_as_another_is_refused_with_its_path(kind: Any, value: Any, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason) as raised:
        payload_of(kind).encode((value,), {})
    assert "'x'" in str(raised.value) or "bytes as JSON" in str(raised.value)
    assert len(str(raised.value)) < 1_000


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [101, 400, 200_000])
def test_what_is_nested_deeper_than_another_process_may_read_is_refused(depth: int) -> None:
    with pytest.raises(PayloadError, match="nested too deeply"):
        payload_of(Any).encode((nested(depth),), {})
    with pytest.raises(PayloadError, match="nested too deeply"):
        payload_of(Any).encode_result(nested(depth))


def test_arguments_written_as_json_that_is_nested_too_deeply_are_refused() -> None:
    """A RecursionError came out of `headgate jobs enqueue --payload`."""
    with pytest.raises(PayloadError, match="the arguments of task 'work' are nested too deeply, over 100 levels"):
        payload_of(Any).parse(f'{{"x": {"[" * 100_000}{"]" * 100_000}}}')


def test_depth_is_counted_outside_of_texts_only_and_wide_is_not_deep() -> None:
    assert there_and_back(Any, nested(98)) == nested(98)
    assert there_and_back(Any, "[" * 1_000 + '\\"{') == "[" * 1_000 + '\\"{'
    assert there_and_back(Any, [[]] * 1_000) == [[]] * 1_000


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(PayloadError, match="nested too deeply"):
        payload_of(Any).encode((loop,), {})


@pytest.mark.parametrize(
    "kind", [Path, complex, OrderedDict, Counter[str], list[Path], dict[str, complex], int | Path, Address | Point]
)
def test_an_annotation_without_a_json_form_is_refused_at_the_declaration(kind: Any) -> None:
    with pytest.raises(DeclarationError, match="argument 'x' of task 'work' cannot be stored"):
        payload_of(kind)


@dataclass
class Picky:
    value: int
    seen: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.value < 0:
            raise KeyError("no negative ones")


def test_an_error_of_a_classs_own_code_is_a_misfit_and_nothing_else() -> None:
    payload = payload_of(Picky)
    assert there_and_back(Picky, Picky(1)) == Picky(1)
    with pytest.raises(PayloadError, match="no negative ones"):
        payload.decode('{"x":{"value":-1}}')


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@dataclass
class Silent:
    value: int

    def __post_init__(self) -> None:
        raise Mute


def test_an_error_that_cannot_be_printed_is_a_misfit_too() -> None:
    with pytest.raises(PayloadError, match="Mute"):
        payload_of(Silent).decode('{"x":{"value":1}}')


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "{",
        "null",
        "[1]",
        '{"x":"NaN"}',
        '{"x":1.5}',
        '{"x":"' + "a" * 100_000,
        "[" * 200_000,
        '{"x":' + "9" * 100_000 + "}",
        '{"x":NaN}',
        '{"y":1}',
        '{"x":1,"y":2}',
        '{"x":"\\ud800"}',
    ],
    ids=lambda stored: stored[:12],
)
def test_a_damaged_stored_payload_is_a_payload_error_and_nothing_else(stored: str) -> None:
    with pytest.raises(PayloadError, match="do not fit its signature"):
        payload_of(int).decode(stored)


def test_of_a_name_that_is_stored_twice_the_last_value_counts() -> None:
    assert payload_of(int).decode('{"x":1,"x":2}') == ([], {"x": 2})


class Title(TypedDict):
    title: str


class Left(NamedTuple):
    left: int


class Longer(NamedTuple):
    left: int
    right: str
    more: int = 7


class Swapped(NamedTuple):
    right: Any
    left: Any


class Street(pydantic.BaseModel):
    street: str


@attrs.define
class Across:
    x: int


@dataclass
class Renamed:
    sku: str
    cost: Decimal = Decimal(0)


@pytest.mark.parametrize(
    ("old", "value", "new", "read"),
    [
        (Movie, {"title": "Heat", "year": 1995}, Title, {"title": "Heat"}),
        (Address, ADDRESS, Street, Street(street="Main")),
        (Point, Point(1, 2), Across, Across(1)),
        (Pair, Pair(1, "b"), Longer, Longer(1, "b", 7)),
        (Pair, Pair(1, "b"), Left, None),
        # What the docs warn of.
        (Pair, Pair(1, "b"), Swapped, Swapped(1, "b")),
        (Line, Line("x", Decimal(9)), Renamed, Renamed("x", Decimal(0))),
        (str, "abcd", bytes, b"i\xb7\x1d"),
    ],
    ids=named,
)
def test_a_stored_value_fits_a_changed_class_as_documented(old: Any, value: Any, new: Any, read: Any) -> None:
    stored, _ = payload_of(old).encode((value,), {})
    if read is None:
        with pytest.raises(PayloadError, match="Expected `array` of length 1"):
            payload_of(new).decode(stored)
    else:
        assert payload_of(new).decode(stored)[1]["x"] == read


def test_an_argument_that_the_function_no_longer_has_is_not_dropped_in_silence() -> None:
    def work(page: int = 1) -> None: ...

    with pytest.raises(PayloadError, match="pages"):
        PayloadType(work, "task 'work'").decode('{"pages":7}')


@pytest.mark.parametrize(
    ("kind", "value"),
    [(Address, ADDRESS), (list[Address], [ADDRESS]), (Point, Point(1, 2.0)), (datetime, datetime(2026, 1, 1))],  # noqa: DTZ001
    ids=named,
)
def test_a_result_comes_back_as_its_annotated_type(kind: Any, value: Any) -> None:
    payload = payload_of(Any, kind)
    assert payload.decode_result(payload.encode_result(value)) == value


def test_a_result_without_annotation_comes_back_as_plain_json() -> None:
    payload = payload_of(Any)
    assert payload.decode_result(payload.encode_result(Point(1, 2.0))) == {"x": 1, "y": 2.0}
    assert payload.decode_result(payload.encode_result((1, 2))) == [1, 2]


def test_a_result_may_be_none_whatever_the_annotation_and_a_list_for_a_sequence() -> None:
    payload = payload_of(Any, Sequence[int])
    assert payload.decode_result(payload.encode_result(None)) is None
    assert payload.decode_result(payload.encode_result((1, 2))) == [1, 2]


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (int, "1", "does not fit its annotation: Expected `int`"),
        (float | None, float("nan"), "nan comes back as None"),
        (list[Any], [object()], r"at it\[0\]: a value of the type object"),
        (Any, "\ud800", "surrogates"),
    ],
)
def test_a_result_that_a_caller_would_not_get_is_refused(kind: Any, value: Any, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        payload_of(Any, kind).encode_result(value)


def test_a_stored_result_that_no_longer_fits_says_so() -> None:
    with pytest.raises(PayloadError, match="returned does not fit its annotation"):
        payload_of(Any, int).decode_result('"text"')


def renamed(stored: dict[str, Any]) -> dict[str, Any]:
    stored["page"] = stored.pop("pages")
    return stored


def paged(page: int = 1) -> None: ...


def test_an_upgrade_is_asked_only_for_a_payload_that_does_not_fit() -> None:
    asked: list[dict[str, Any]] = []

    def upgrade(stored: dict[str, Any]) -> dict[str, Any]:
        asked.append(dict(stored))
        return renamed(stored)

    payload = PayloadType(paged, "task 'paged'", upgrade=upgrade)
    assert payload.decode('{"page":3}') == ([], {"page": 3})
    assert payload.decode("{}") == ([], {})
    assert asked == []
    assert payload.decode('{"pages":7}') == ([], {"page": 7})
    assert payload.arguments('{"pages":8}') == {"page": 8}
    assert asked == [{"pages": 7}, {"pages": 8}]


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        ('{"pagez":7}', "its upgrade does not help: KeyError: 'pages'"),
        ('{"pages":"seven"}', "Expected `int"),
        ("[1]", "not a JSON object"),
        ("{", "malformed|truncated"),
    ],
)
def test_an_upgrade_that_does_not_help_is_a_payload_error_with_its_cause(stored: str, reason: str) -> None:
    payload = PayloadType(paged, "task 'paged'", upgrade=renamed)
    with pytest.raises(PayloadError, match=reason) as raised:
        payload.decode(stored)
    assert raised.value.__cause__ is not None


def test_an_upgrade_is_a_plain_function() -> None:
    async def upgrade(stored: dict[str, Any]) -> dict[str, Any]:
        return stored

    for wrong in (upgrade, "upgrade"):
        with pytest.raises(DeclarationError, match="upgrade= of task 'paged'"):
            PayloadType(paged, "task 'paged'", upgrade=wrong)  # type: ignore[arg-type]
