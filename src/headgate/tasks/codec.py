"""Codecs: functions that payloads and results pass through before they are stored, and after they are read."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Protocol

from headgate.errors import USER_CODE_ERRORS, DeclarationError, PayloadError
from headgate.jobs.encoded import FOLDER, is_encoded, read_encoded, write_encoded

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


class Codec(Protocol):
    """Encodes payloads and results, which are JSON, as other bytes: compressed, encrypted.

    `name` is stored with the bytes, in clear: letters, digits, dots, hyphens and underscores, at most 80. `encode` and
    `decode` are plain functions that do not wait: they are called on the event loop, and from several threads. A codec
    may return what it was given, for example if compression would not pay; then `decode` is not called for it. If it
    raises, the job stores that error, so its message must not contain data.

    A codec that encrypts should also have `digest(data: bytes) -> bytes`, a keyed digest. It is stored for the
    arguments of declared schedules, to order the releases that declare them, and for requests with an Idempotency-Key;
    without it, a plain digest of them is.
    """

    @property
    def name(self) -> str: ...

    def encode(self, data: bytes, /) -> bytes: ...

    def decode(self, data: bytes, /) -> bytes: ...


class Codecs:
    """The codecs of an app: those that encode, in their order, and old ones that only decode.

    Raises DeclarationError for an object that is no codec, and for a name that two of them have.
    """

    def __init__(self, codec: Codec | Sequence[Codec] | None = None, old_codecs: Sequence[Codec] = ()) -> None:
        self._encoders = _listed(codec, "codec")
        self._by_name: dict[str, Codec] = {}
        for each in (*self._encoders, *_listed(old_codecs, "old_codecs")):
            if each.name in self._by_name:
                raise DeclarationError(
                    f"two codecs are named {each.name!r}; the name says how a stored payload is decoded, so give each "
                    "its own"
                )
            self._by_name[each.name] = each

    def __bool__(self) -> bool:
        return bool(self._by_name)

    @property
    def encodes(self) -> bool:
        """Whether what is stored is encoded."""
        return bool(self._encoders)

    def encode(self, json: bytes, what: str) -> str:
        """Return JSON as it is stored; `what` it is of, for errors. Raises PayloadError if a codec fails."""
        data, names = json, []
        for codec in self._encoders:
            encoded = _called(codec.encode, data, f"{what} cannot be encoded with {codec.name!r}")
            if encoded != data:
                names.append(codec.name)
                data = encoded
        return write_encoded(names, data) if names else json.decode()

    def decode(self, text: str, what: str) -> str:
        """Return the JSON of a stored text, encoded or not.

        Raises PayloadError without a codec that has encoded it, or if that fails.
        """
        if not is_encoded(text):
            return text
        try:
            names, data = read_encoded(text)
        except ValueError:
            raise PayloadError(f"{what} cannot be decoded: what is stored is damaged") from None
        for name in reversed(names):
            codec = self._by_name.get(name)
            if name == FOLDER:
                raise PayloadError(
                    f"{what} is in a folder, and this program reads none: pass large_payloads=PayloadFolder(…) to "
                    "Headgate, or read it where that is done"
                )
            if codec is None:
                known = f"has only {', '.join(map(repr, self._by_name))}" if self._by_name else "has no codec"
                raise PayloadError(
                    f"{what} cannot be decoded: it is encoded with {name!r}, and this app {known}; pass the codec of "
                    "that name to Headgate as codec= or in old_codecs="
                )
            data = _called(codec.decode, data, f"{what} cannot be decoded with {name!r}")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise PayloadError(f"{what} cannot be decoded: the codecs return other bytes than were encoded") from None

    def opened(self, text: str) -> str:
        """Return the JSON of a stored text; the text as it is stored if this app cannot decode it."""
        try:
            return self.decode(text, "it")
        except PayloadError:
            return text

    def digest(self, text: str, what: str) -> str:
        """Return a short text that differs between stored texts with different contents, however they are encoded."""
        return next(self.digests(text, what))

    def digests(self, text: str, what: str) -> Iterator[str]:
        """Yield the digest of a stored text, then what it may have been before: without a key, and under old codecs."""
        data = self.decode(text, what).encode()
        keyed: list[Callable[[bytes], bytes] | None] = [
            getattr(each, "digest", None) for each in self._by_name.values()
        ]
        keyed.insert(len(self._encoders), bytes)
        for own in keyed:
            if own is not None:
                yield blake2b(_called(own, data, f"{what} has no digest"), digest_size=16).hexdigest()


def _called(function: Callable[[bytes], bytes], data: bytes, problem: str) -> bytes:
    try:
        returned: Any = function(data)
    except USER_CODE_ERRORS as error:
        try:
            message = str(error)
        except USER_CODE_ERRORS:  # the error's own code may fail, too
            message = ""
        raise PayloadError(f"{problem}: {type(error).__name__}{message and ': '}{message}") from error
    if not isinstance(returned, bytes):
        raise PayloadError(f"{problem}: it returned a {type(returned).__name__}, not bytes")
    return returned


def _listed(given: object, option: str) -> tuple[Codec, ...]:
    if given is None:
        return ()
    codecs: Iterable[Any] = given if isinstance(given, (list, tuple)) else (given,)
    return tuple(_checked(codec, option) for codec in codecs)


def _checked(codec: Any, option: str) -> Codec:
    kind = codec.__name__ if isinstance(codec, type) else type(codec).__name__
    if isinstance(codec, type):
        raise DeclarationError(f"{option}={kind}: pass an instance, {kind}(…), not the class")
    for name in ("encode", "decode"):
        function = getattr(codec, name, None)
        if not callable(function):
            raise DeclarationError(
                f"{option}: {kind} is not a codec, it has no {name}(); a codec has a name, encode(bytes) -> bytes and "
                "decode(bytes) -> bytes"
            )
        if inspect.iscoroutinefunction(function):
            raise DeclarationError(f"{option}: {name} of {kind} is an async def; write a plain def, which never waits")
    known_as = getattr(codec, "name", None)
    if not isinstance(known_as, str) or not _NAME.fullmatch(known_as):
        raise DeclarationError(
            f"{option}: {kind} needs a name of 1 to 80 letters, digits, dots, hyphens and underscores, not "
            f"{known_as!r:.80}"
        )
    if known_as == FOLDER:
        raise DeclarationError(f"{option}: {kind} is named {FOLDER!r}, which marks large payloads; choose another name")
    checked: Codec = codec
    return checked


NO_CODECS = Codecs()
"""The codecs of an app without a codec."""
