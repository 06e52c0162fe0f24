"""Endpoints: one declaration of each parses its requests and documents it."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from headgate.clock import SystemClock, within
from headgate.errors import PayloadError, UnknownLimit
from headgate.http.auth import Role
from headgate.http.caller import Caller
from headgate.http.http_error import HttpError, WrongInput
from headgate.suggestion import did_you_mean
from headgate.tasks.values import MAX_DEPTH, is_too_deep

API = "/api/v1"
"""The path of the API below the dashboard; a change that breaks programs gets another version."""

LARGEST_BODY = 64 * 1024
"""Bytes; the body of any valid request is far smaller."""

LARGEST_NUMBER = 2**53 - 1
"""The largest integer that JavaScript represents exactly."""

SLOWEST_BODY = 10.0
"""Seconds within which a body has to arrive; a slower client only holds a connection."""

MOST_FIELDS = 50

LONGEST_IDEMPOTENCY_KEY = 255

Method = Literal["GET", "POST", "DELETE"]
Handler = Callable[..., Coroutine[Any, Any, Any]]


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a request; unknown parameters are refused."""


class JsonBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The JSON body of a request; a body whose fields all have defaults may be left out.

    The arguments of a job in `payload` are checked by its task.
    """


class Acknowledgement(msgspec.Struct, frozen=True):
    """The change is made; `changed` is False if nothing had to be changed."""

    changed: bool = True


ACKNOWLEDGED = Acknowledgement()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One operation of the API: its method, path, role, parameters and result.

    Its handler gets the `Caller`, the parts of the path by name, and the `query`, the `body` and the `idempotency_key`
    of the request if it takes them. The result of one that returns None is an `Acknowledgement`, and so is a bool:
    whether anything was changed. The first line of its docstring is the summary in the description of the API.
    `refuses` are its own error statuses, beside those that any endpoint can have. `sends` is an example of its body,
    `answers` one of its result.
    """

    method: Method
    path: str
    needs: Role
    handler: Handler
    refuses: tuple[int, ...] = ()
    sends: Mapping[str, Any] | None = None
    answers: Any = None

    @property
    def name(self) -> str:
        return self.handler.__name__.rstrip("_")

    @property
    def subject(self) -> str:
        """The noun that it is about: the module of its handler."""
        return self.handler.__module__.rpartition(".")[2]

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.handler) or "").partition("\n")[0]

    @property
    def description(self) -> str:
        return (inspect.getdoc(self.handler) or "").partition("\n")[2].strip()

    @property
    def path_names(self) -> Sequence[str]:
        return re.findall(r"{(\w+)}", self.path)

    @property
    def hints(self) -> Mapping[str, Any]:
        return get_type_hints(self.handler, include_extras=True)

    @property
    def query(self) -> type[msgspec.Struct] | None:
        return self.hints.get("query")

    @property
    def body(self) -> type[JsonBody] | None:
        return self.hints.get("body")

    @property
    def answer(self) -> Any:
        found = self.hints["return"]
        return Acknowledgement if found in (bool, NoneType) else found

    @property
    def takes_idempotency_key(self) -> bool:
        return "idempotency_key" in self.hints

    @property
    def creates(self) -> bool:
        """Whether its status is 201 if the answer `is_new`."""
        return "is_new" in getattr(self.answer, "__dataclass_fields__", ())

    @property
    def changes(self) -> bool:
        """Whether it changes something, and so needs the caller's token."""
        return self.method != "GET"

    @property
    def is_body_optional(self) -> bool:
        return self.body is None or all(not field.required for field in msgspec.structs.fields(self.body))


def reads(path: str, handler: Handler, *, refuses: tuple[int, ...] = ()) -> Endpoint:
    """Declare an endpoint that reads."""
    return Endpoint("GET", path, "viewer", handler, refuses)


def acts(
    path: str,
    handler: Handler,
    *,
    needs: Role = "operator",
    refuses: tuple[int, ...] = (),
    sends: Mapping[str, Any] | None = None,
    answers: Any = ACKNOWLEDGED,
) -> Endpoint:
    """Declare an endpoint that changes something."""
    return Endpoint("POST", path, needs, handler, refuses, sends, answers)


def removes(path: str, handler: Handler, *, needs: Role = "admin", refuses: tuple[int, ...] = ()) -> Endpoint:
    """Declare an endpoint that removes something."""
    return Endpoint("DELETE", path, needs, handler, refuses, answers=ACKNOWLEDGED)


class EndpointRunner:
    """Runs an endpoint: parses the request, calls the handler, and encodes the result."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._query = endpoint.query
        self._body = endpoint.body
        self._takes_key = endpoint.takes_idempotency_key
        self._acknowledges = endpoint.answer is Acknowledgement
        self._encode = msgspec.json.Encoder().encode

    async def __call__(self, request: Request, caller: Caller) -> Response:
        """Return the response. Raises HttpError, and HeadgateError for what the app refuses."""
        given: dict[str, Any] = {name: require_text(name, value) for name, value in request.path_params.items()}
        query = parse_query(request.scope.get("query_string", b""), self._query or Query)
        if self._query is not None:
            given["query"] = query
        if self._body is not None:
            given["body"] = parse_body(await read_body(request), self._body)
        if self._takes_key:
            given["idempotency_key"] = _idempotency_key(request)
        work = caller.reach(self.endpoint.handler(caller, **given))
        # A search in payloads reads whole tables, so it ends if the client has disconnected.
        is_search = self.endpoint.method == "GET" and getattr(query, "text", None) is not None
        answer = await (_while_connected(request, work) if is_search else work)
        if self._acknowledges:
            answer = Acknowledgement(answer is None or answer)
        status = 201 if getattr(answer, "is_new", False) else 200
        body, headers = self._encode(answer), {"Cache-Control": "no-store"}
        if not self.endpoint.changes:
            # Weak, because the same answer may be compressed.
            tag = hashlib.blake2b(body, digest_size=16).hexdigest()
            headers["ETag"] = f'W/"{tag}"'
            known = request.headers.get("if-none-match", "").split(",")
            if any(each.strip() in ("*", f'"{tag}"', f'W/"{tag}"') for each in known):
                return Response(status_code=304, headers=headers)
        return Response(body, status, media_type="application/json", headers=headers)


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= LONGEST_IDEMPOTENCY_KEY:
        message = f"an idempotency key has 1 to {LONGEST_IDEMPOTENCY_KEY} characters, not {len(key)}"
        raise bad_request(message, parameter="Idempotency-Key")
    return key


async def _while_connected(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of `work`, which is cancelled if the client disconnects. Then it raises HttpError."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HttpError(408, "disconnected", "the connection was closed before the search had ended")
        return working.result()
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait([working])


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def parse_query(text: bytes, kind: type[msgspec.Struct]) -> msgspec.Struct:
    """Return the parameters of a URL. Raises HttpError for unknown, repeated or invalid ones."""
    try:
        pairs = parse_qsl(text.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError as error:
        raise bad_request(f"the query cannot be read: {error}") from None
    given = dict(pairs)
    if len(given) < len(pairs):
        raise bad_request("a parameter is given twice; give each once")
    for name, value in given.items():
        require_text(name, value, parameter=name)
    try:
        query = msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        message, path = _worded(error, "parameter", kind)
        raise bad_request(message, parameter=path[0] if path else None) from None
    for name, value in given.items():
        # msgspec takes the text "null" for None, but the schema has no null: a parameter that has no value is left out.
        if getattr(query, name) is None:
            raise bad_request(f"{value} is no value of this parameter; leave it out ({name})", parameter=name)
    return query


def parse_body(content: bytes, kind: type[JsonBody]) -> JsonBody:
    """Return the body of a request. Raises HttpError if it is not JSON or not valid, PayloadError if it is too deep."""
    try:
        body = msgspec.json.decode(content or b"{}", type=kind)
    except msgspec.ValidationError as error:
        message, path = _worded(error, "field", kind)
        raise bad_request(message, pointer=_pointer(path)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from None
    if is_too_deep(content, MAX_DEPTH + 1):  # one level is the body's
        raise PayloadError(f"the payload is nested too deeply, over {MAX_DEPTH} levels")
    require_storable({name: value for name, value in msgspec.to_builtins(body).items() if name != "payload"})
    return body


async def read_body(request: Request, *, kind: str = "application/json", largest: int = LARGEST_BODY) -> bytes:
    """Return the body, if it is of this kind, not too long and arrives in time. Raises HttpError."""
    try:
        return await within(SystemClock(), SLOWEST_BODY, _read_body(request, kind, largest))
    except TimeoutError:
        raise HttpError(408, "too_slow", f"the body did not arrive within {SLOWEST_BODY:g} s") from None
    except ClientDisconnect:
        raise bad_request("the connection was lost before the body had arrived") from None


async def _read_body(request: Request, kind: str, largest: int) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > largest:
        raise _too_large(largest)
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > largest:
            raise _too_large(largest)
    if content and request.headers.get("content-type", "").partition(";")[0].strip().lower() != kind:
        raise HttpError(415, "unsupported_media_type", f"send this body with Content-Type: {kind}")
    return bytes(content)


def require_text(name: str, value: str, **place: str) -> str:
    """Raise HttpError, which names the place, for text that no store can contain."""
    if "\x00" in value or "\x00" in name:
        message = f"{name.encode(errors='replace').decode()!r} has a NUL character, which text cannot contain"
        raise bad_request(message, **place)
    return value


def require_storable(value: Any, path: tuple[str, ...] = ()) -> None:
    """Raise HttpError if a text or a number in the value, which is at this path, cannot be in any store."""
    match value:
        case str():
            require_text("a field", value, pointer=_pointer(path))
        case int() if abs(value) > LARGEST_NUMBER:
            raise bad_request(f"{value} is too large", pointer=_pointer(path))
        case dict():
            for name, each in value.items():
                require_storable(name, path)
                require_storable(each, (*path, name))
        case list():
            for number, each in enumerate(value):
                require_storable(each, (*path, str(number)))


def _worded(error: msgspec.ValidationError, what: str, kind: type[msgspec.Struct]) -> tuple[str, Sequence[str]]:
    """Return msgspec's message in the words of the API, and the path of the value that it is about.

    It also names what there is instead of an unknown name or choice at the top of `kind`. The path ends above a value
    of a mapping, whose name msgspec leaves out.
    """
    message, _, place = str(error).partition(" - at `$")
    place = place.strip("`.")
    path = [name or number for name, number in re.findall(r"([^.\[\]]+)|\[(\d+)\]", place.partition("[...]")[0])]
    path += re.findall(r"(?:unknown|required) field `([^`]*)`", message) if "[...]" not in place else []
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)} if len(path) == 1 else {}
    if "unknown field" in message:
        message = message.replace("Object contains unknown field", f"there is no {what}")
        if fields:
            message += f"{did_you_mean(path[0], fields)} There are: {', '.join(fields)}"
    elif message.startswith("Invalid enum value") and (choices := _choices(fields.get(path[0] if path else ""))):
        message += f"; write one of: {', '.join(choices)}"
    return f"{message} ({place})" if place else message, path


def _choices(kind: Any) -> Sequence[str]:
    """Return the values that a type names: the members of an enum or of a Literal, also in a union."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    return [value for part in get_args(kind) for value in _choices(part)]


def _pointer(path: Sequence[str]) -> str:
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in path)


def bad_request(message: str, **place: str | None) -> HttpError:
    """Return an error that names the `parameter` or the `pointer` of what is wrong, if it is known."""
    is_known = any(value is not None for value in place.values())
    return HttpError(400, "bad_request", message, errors=[WrongInput(message, **place)] if is_known else ())


def require_limit(caller: Caller, limit: str | None) -> None:
    """Refuse a number that is no declared limit: other APIs call the size of a page `limit`. Raises HttpError."""
    if limit is not None and limit.isdecimal():
        try:
            caller.admin.limits.declared(limit)
        except UnknownLimit as error:
            raise bad_request(f"{error}; to get at most {limit}, write count={limit}", parameter="limit") from None


def _too_large(largest: int) -> HttpError:
    return HttpError(413, "too_large", f"the body is longer than {largest:,} bytes")
