"""Stored rows: how they are decoded, and the ids of lanes and buckets.

A row may be damaged, edited by hand, or written by a newer release. A field that cannot be read is replaced by a blank
value, the row names that field, and each process logs it once; other rows are unaffected.

The ids of lanes and buckets are hashes of their names. So a job can be added to a lane without reading the lane, and
buckets can be locked in the order of their ids before any of them exists. An id is 128 bits, so that nobody can
construct two keys with the same id. It is text of 22 characters, which both databases sort as Python does.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import lru_cache
from operator import attrgetter, itemgetter
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec.structs import astuple, force_setattr

from headgate.jobs.identity import STORED_AS_NUMBER, is_own_unknown, job_text
from headgate.jobs.job import BucketRef
from headgate.jobs.terms import LimitTerms, PermitTerms
from headgate.limits.concurrency import UNREADABLE
from headgate.limits.limit import AnyRule

R = TypeVar("R")

logger = logging.getLogger("headgate.storage")

UNREADABLE_BUCKETS = (BucketRef("", "unreadable"),)
"""The buckets of a job if they cannot be read: a limit that no app can declare, so no claim takes from its lane."""

MOST_LOGGED = 10_000
"""How many unreadable rows a process logs; the others are not logged."""

_BLANKS: tuple[Any, ...] = (None, [], {}, "", 0, False)

_decode_row = msgspec.json.Decoder(list[msgspec.Raw]).decode

_encode = msgspec.json.Encoder().encode

_logged: set[tuple[str, str, str]] = set()


class Field(NamedTuple):
    """A column of a row: a number or text as it is stored, a truth value, or JSON text that is decoded.

    `blank` takes the place of a value that cannot be read as `type`.
    """

    name: str
    kind: Literal["plain", "boolean", "json"]
    type: Any
    blank: Any


class RowDecoder(Generic[R]):
    """Decodes rows of one kind, a struct or a named tuple, from the result of a statement: a JSON array, or columns.

    `what` is the name of such a row in the log. A field that cannot be read is replaced by its value in `blanks` (or by
    the result of a function there, called with the unreadable value), or else by the emptiest value of its type. If the
    struct has a field `unreadable`, it names the field and the fault.

    A field of type `JobId` is decoded as a number. `with_texts` makes it text, once the texts of own ids are known.
    """

    def __init__(self, kind: type[R], what: str, /, **blanks: Any) -> None:
        self._row_type = kind
        self._what = what
        self._blanks = blanks

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Prepare the decoder at its first use: that of all took 40 ms of an import, and a process uses a few."""
            # Another thread may have prepared it meanwhile.
            if not name.startswith("__") and "_nothing" not in self.__dict__:
                self._prepare()
            return object.__getattribute__(self, name)

    def _prepare(self) -> None:
        row_type, blanks = self._row_type, self._blanks
        self.ids: list[str] = [name for name, of in get_type_hints(row_type, include_extras=True).items() if _is_id(of)]
        """The names of the fields that are ids of jobs or batches."""
        self._kind = kind = _from_array(row_type, self.ids)
        self._is_tuple = not issubclass(kind, msgspec.Struct)
        self._is_array = issubclass(row_type, msgspec.Struct) and row_type.__struct_config__.array_like
        self._id_getters = [attrgetter(name) for name in self.ids]
        # Not strict: SQLite has numbers for truth values.
        self._decode_all = msgspec.json.Decoder(list[kind], strict=False).decode  # type: ignore[valid-type]
        names: Sequence[str] = getattr(kind, "__struct_fields__", None) or kind._fields  # type: ignore[attr-defined]
        types = get_type_hints(kind)
        self._names_faults = "unreadable" in names
        self.fields: list[Field] = [
            Field(name, _kind_of(types[name]), types[name], blanks[name] if name in blanks else _blank(types[name]))
            for name in names
            if name != "unreadable"
        ]
        self.names: list[str] = [field.name for field in self.fields]
        converters = enumerate(map(_converter, self.fields))
        self._converters = [(place, convert) for place, convert in converters if convert is not None]
        places = [place for place, _ in self._converters]
        self._pick: Callable[[Sequence[Any]], Any] = itemgetter(*places) if places else lambda row: None
        self._nothing = (None,) * len(places) if len(places) > 1 else None

    def own_ids(self, rows: Iterable[R]) -> set[int]:
        """Return the numbers of the ids that callers chose, if this process does not have their texts."""
        return {
            number
            for get in self._id_getters
            for number in map(get, rows)
            if number is not None and number < 0 and is_own_unknown(number)
        }

    def with_texts(self, rows: list[R]) -> list[R]:
        """Return the rows with the texts of their ids."""
        if self._is_tuple and self.ids:
            texts = [
                {name: job_text(id) for name in self.ids if (id := getattr(row, name)) is not None} for row in rows
            ]
            return [cast(Any, row)._replace(**each) for row, each in zip(rows, texts, strict=True)]
        for name, get in zip(self.ids, self._id_getters, strict=True):
            for row, number in zip(rows, map(get, rows), strict=True):
                if number is not None:
                    force_setattr(row, name, job_text(number))  # type: ignore[arg-type]  # it is a struct
        if self._is_array:
            # The same type that others make, so that equal rows are equal.
            return [self._row_type(*astuple(cast(msgspec.Struct, row))) for row in rows]
        return rows

    def decode(self, text: str | bytes) -> list[R]:
        """Return the rows; fields that cannot be read are blank."""
        try:
            return self._decode_all(text)
        except (msgspec.DecodeError, UnicodeError):
            return [self.repaired([_value(raw) for raw in _decode_row(row)]) for row in _decode_row(text)]

    def decode_row(self, row: Sequence[Any]) -> R:
        """Return one row from its columns as they are stored, in the order of its fields."""
        if self._pick(row) == self._nothing:
            # Nothing to convert, as in most rows with many columns.
            return self._kind(*row)
        values = list(row)
        try:
            for place, convert in self._converters:
                if values[place] is not None:
                    values[place] = convert(values[place])
        except (msgspec.DecodeError, UnicodeError, ValueError):
            return self.repaired(list(row))
        return self._kind(*values)

    def decode_rows(self, rows: Iterable[Sequence[Any]]) -> list[R]:
        """Return many rows; see `decode_row`."""
        kind, pick, nothing = self._kind, self._pick, self._nothing
        if not self._converters:
            return [kind(*row) for row in rows]
        return [kind(*row) if pick(row) == nothing else self.decode_row(row) for row in rows]

    def repaired(self, row: Sequence[Any]) -> R:
        """Return one row with blanks for what cannot be read; a JSON value may be text or already decoded."""
        values: dict[str, Any] = {}
        faults: list[str] = []
        for field, value in zip(self.fields, row, strict=False):
            try:
                values[field.name] = _read(value, field.type)
            except (msgspec.DecodeError, UnicodeError) as error:
                values[field.name] = field.blank(value) if callable(field.blank) else field.blank
                faults.append(f"{field.name}: {error}")
        if faults and not self._names_faults and "buckets" in values and "terms" in values:
            unread = {fault.partition(":")[0] for fault in faults}
            # Buckets and terms have to match each other.
            if "buckets" in unread:
                values["buckets"], values["terms"] = UNREADABLE_BUCKETS, None
            elif "terms" in unread:
                # As if it held each permit by itself while it runs, so that it returns what it holds when it ends.
                values["terms"] = LimitTerms(holds=(PermitTerms(),) * len(values["buckets"]))
        fault = "; ".join(faults)[:500]
        if faults:
            name = values.get("id", values.get("name", ""))
            note_unreadable(self._what, job_text(name) if isinstance(name, int) else str(name), fault)
            if self._names_faults:
                values["unreadable"] = fault
        return self._kind(**values)


def note_unreadable(what: str, name: str, error: str) -> None:
    """Log that a row cannot be read, once for each row and field in each process."""
    key = what, name, error.partition(":")[0]
    if key not in _logged and len(_logged) < MOST_LOGGED:
        _logged.add(key)
        logger.error("%s %s in the store cannot be read: %s", what, name, error)


def load_state(rule: AnyRule, ref: BucketRef, stored: str, now: int) -> Any:
    """Return the state of a bucket, read by `rule.load`; for one that cannot be read, a state in which nothing is left.

    A rate then grants nothing for one period, which is as long as its past grants can matter. The holders of permits
    are unknown, so a concurrency limit grants none until an operator resets the bucket.
    """
    try:
        return rule.load(stored, now)
    except Exception as error:  # the stored text may fail in any way
        note_unreadable("bucket", f"{ref.limit}:{ref.key}", f"state: {error}")
        return rule.load(UNREADABLE, now)


def _read(value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, strict=_kinds(kind) != [bool])
    except msgspec.ValidationError:
        if not isinstance(value, str):
            raise
        return msgspec.json.decode(value, type=kind)


def _value(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError):
        # For example a number beyond all bounds. No field accepts bytes, so it is replaced by a blank.
        return cast(Any, bytes(raw))


def _kinds(kind: Any) -> list[Any]:
    """Return the types that a column may have, except NULL."""
    if get_origin(kind) in (Union, UnionType):
        return [each for part in get_args(kind) for each in _kinds(part)]
    return [] if kind is NoneType else [kind]


def _kind_of(kind: Any) -> Literal["plain", "boolean", "json"]:
    kinds = _kinds(kind)
    if kinds == [bool]:
        return "boolean"
    return "plain" if all(_is_plain(one) for one in kinds) else "json"


def _is_plain(kind: Any) -> bool:
    if get_origin(kind) is Literal or kind is Any:
        return True
    kind = getattr(kind, "__supertype__", kind)  # of a NewType, as a set of buckets is
    return isinstance(kind, type) and issubclass(kind, (int, str, float, bytes, Enum))


def _converter(field: Field) -> Any:
    """Return a function that converts a column to its field's type; None if no conversion is needed."""
    kinds = _kinds(field.type)
    if field.kind == "json":
        decode = msgspec.json.Decoder(field.type).decode
        # Many jobs have equal values, and they are immutable.
        return lru_cache(10_000)(decode) if kinds in ([tuple[BucketRef, ...]], [LimitTerms]) else decode
    if field.kind == "boolean":
        return bool
    if len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], Enum):
        return kinds[0]
    return None


def _is_id(kind: Any) -> bool:
    if get_origin(kind) in (Union, UnionType):
        return any(map(_is_id, get_args(kind)))
    return get_origin(kind) is Annotated and STORED_AS_NUMBER in get_args(kind)


def _from_array(kind: type[R], ids: Sequence[str]) -> type[R]:
    """Return a type with the same fields that is decoded from a JSON array, as rows are, with numbers for `ids`."""
    types = get_type_hints(kind)
    numbers = {name: int | None if NoneType in get_args(types[name]) else int for name in ids}
    if not issubclass(kind, msgspec.Struct):
        fields = {**types, **numbers}
        return cast(type[R], type(kind.__name__, (kind,), {"__annotations__": fields})) if ids else kind
    if kind.__struct_config__.array_like and not ids:
        return kind
    metaclass: Any = type(kind)
    namespace = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    if numbers:
        namespace["__annotations__"] = numbers
        defaults = msgspec.structs.fields(kind)
        namespace |= {field.name: field.default for field in defaults if field.name in numbers and not field.required}
    return cast(type[R], metaclass(kind.__name__, (kind,), namespace, array_like=True))


def _blank(kind: Any) -> Any:
    for value in _BLANKS:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            continue
    return None


@lru_cache(100_000)
def bucket_id(ref: BucketRef) -> str:
    """Return the id of a bucket."""
    return _hash("bucket", ref.limit, ref.key)


@lru_cache(100_000)
def lane_id(queue: str, buckets: Sequence[BucketRef], wait_mode: str) -> str:
    """Return the id of a lane."""
    return _hash("lane", queue, wait_mode, *(part for ref in buckets for part in (ref.limit, ref.key)))


def _hash(*parts: str) -> str:
    digest = hashlib.blake2b(_encode(parts), digest_size=16).digest()
    return base64.urlsafe_b64encode(digest)[:22].decode()
