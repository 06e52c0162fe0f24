"""Who is asking: users, their roles, and the ways to tell who somebody is."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from starlette.requests import Request

from headgate.errors import DeclarationError

Role = Literal["viewer", "operator", "admin"]
"""What somebody may do. Each may do what those before it may: look; act on jobs, queues and schedules; change limits
and remove."""

_RANK: Mapping[str, int] = {role: rank for rank, role in enumerate(get_args(Role))}

LONGEST_CREDENTIAL = 4096


@dataclass(frozen=True, slots=True)
class User:
    """Somebody, by the name that the audit log keeps, and what they may do (default: only look)."""

    name: str
    role: Role = "viewer"

    def __post_init__(self) -> None:
        if self.role not in _RANK:
            raise DeclarationError(f"role={self.role!r} of {self.name!r} must be one of {', '.join(_RANK)}")
        if not self.name:
            raise DeclarationError("a user needs a name: what is done is kept under it")

    def may(self, role: Role) -> bool:
        """Whether they may do what that role may."""
        return _RANK[self.role] >= _RANK[role]


class Refused(Exception):
    """A credential was shown, and it is not a good one: one wrong password more of its address.

    With a `credential`, all of what was looked at, this one counts only the first time that its address shows it.
    """

    def __init__(self, *args: object, credential: str | None = None) -> None:
        super().__init__(*args)
        self.credential = credential


class Auth(Protocol):
    """Tells who is asking. `challenge` is what a browser is told to ask for, "" if it has nothing to ask.

    `secret` is what the token of a user is signed with: the same in all processes that know the same credentials, None
    where it has none of its own. It is made of nothing but what this user knows anyway: they see what it has
    signed, and could try passwords of others on it, as fast as they can reckon.
    """

    @property
    def challenge(self) -> str: ...

    def secret(self, user: User) -> bytes | None: ...

    async def user(self, request: Request) -> User | None:
        """Who it is; None if they did not say. Raises Refused for a credential that is not good."""
        ...


@dataclass(frozen=True, slots=True)
class Credential:
    """A password or a token, and whose it is. Its text is not shown when it is printed."""

    user: User
    text: str

    def __repr__(self) -> str:
        return f"Credential({self.user!r}, '…')"


class BasicAuth:
    """Names and passwords, as browsers ask for them: `BasicAuth(ada=("admin", password), …)`, or a mapping.

    There is no default password, and one of fewer than 8 characters is refused. Serve it over HTTPS: passwords travel
    with each request.
    """

    challenge = 'Basic realm="Headgate", charset="UTF-8"'

    def __init__(self, users: Mapping[str, tuple[Role, str]] | None = None, /, **more: tuple[Role, str]) -> None:
        named = {**(users or {}), **more}
        if not named:
            raise DeclarationError('BasicAuth needs a user: BasicAuth(ada=("admin", password))')
        self._credentials: dict[str, Credential] = {}
        for name, (role, password) in named.items():
            if ":" in name or not name:
                raise DeclarationError(f"user name {name!r} must not be empty, nor contain a colon")
            _require_strong(password, f"the password of {name!r}")
            self._credentials[name] = Credential(User(name, role), password)

    def secret(self, user: User) -> bytes | None:
        return _secret_of(user, self._credentials.values())

    async def user(self, request: Request) -> User | None:
        shown = _shown(request, "basic")
        if shown is None:
            return None
        try:
            name, separator, password = base64.b64decode(shown, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            raise Refused(credential=shown) from None
        known = self._credentials.get(name)
        # Compared also where there is nobody of that name, so that the time taken does not tell names.
        is_right = _is_same(password, "" if known is None else known.text)
        if known is None or not separator or not is_right:
            raise Refused(credential=shown)
        return known.user


class BearerAuth:
    """Tokens, for programs and for a proxy that adds them: `BearerAuth({token: User("deploy", "operator")})`.

    A browser cannot be asked for one, but for a name and a password: the token is taken as the password as well, under
    any name. A token of fewer than 16 characters is refused.
    """

    challenge = 'Basic realm="Headgate: the token is the password", charset="UTF-8"'

    def __init__(self, tokens: Mapping[str, User]) -> None:
        if not tokens:
            raise DeclarationError('BearerAuth needs a token: BearerAuth({token: User("deploy", "operator")})')
        for token, user in tokens.items():
            _require_strong(token, f"the token of {user.name!r}", least=16)
        self._credentials = tuple(Credential(user, token) for token, user in tokens.items())

    def secret(self, user: User) -> bytes | None:
        return _secret_of(user, self._credentials)

    async def user(self, request: Request) -> User | None:
        shown = _shown(request, "bearer")
        if shown is None:
            basic = _shown(request, "basic")
            if basic is None:
                return None
            try:
                shown = base64.b64decode(basic, validate=True).decode().partition(":")[2]
            except (binascii.Error, ValueError):
                raise Refused(credential=basic) from None
        # All are compared, so that the time taken does not tell which one it nearly was.
        found = [each.user for each in self._credentials if _is_same(shown, each.text)]
        if not found:
            raise Refused(credential=shown)
        return found[0]


class CallbackAuth:
    """Asks your own function, sync or async, which is given the Starlette request: a `User`, or None for nobody.

    For sessions of the app that it is mounted in: `CallbackAuth(lambda request: user_of(request.session))`. A sync one
    runs on the event loop and must not block. One that compares passwords itself raises `Refused` for a wrong one, so
    that it is throttled by address; None is not.

    It is asked for each request, those for files too: only it knows what of a request its answer comes from, and a
    sign-out holds at once. One that is dear to ask keeps its own answers for a few seconds, and none but good ones.
    """

    challenge = ""

    def __init__(self, callback: Callable[[Request], User | Awaitable[User | None] | None]) -> None:
        if not callable(callback):
            raise DeclarationError(f"CallbackAuth({callback!r}) needs a function from a request to a User or None")
        self._callback = callback

    def secret(self, user: User) -> bytes | None:
        return None

    async def user(self, request: Request) -> User | None:
        found = self._callback(request)
        if inspect.isawaitable(found):
            found = await found
        if found is not None and not isinstance(found, User):
            raise TypeError(f"the callback of CallbackAuth returned {type(found).__name__}, neither a User nor None")
        return found


def _shown(request: Request, scheme: str) -> str | None:
    """What stands in the Authorization header, if it is of this scheme."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != scheme:
        return None
    if len(value) > LONGEST_CREDENTIAL:
        raise Refused
    return value.strip()


def _is_same(shown: str, known: str) -> bool:
    """Compared by digest, in a time that tells neither where they differ nor how long they are."""
    return hmac.compare_digest(
        hashlib.sha256(shown.encode("utf-8", "surrogatepass")).digest(), hashlib.sha256(known.encode()).digest()
    )


def _require_strong(text: str, what: str, least: int = 8) -> None:
    if not isinstance(text, str) or len(text) < least:
        raise DeclarationError(f"{what} must have at least {least} characters")


def _secret_of(user: User, credentials: Iterable[Credential]) -> bytes:
    """The same for the same credentials of a user, in every process, and as hard to guess as they are."""
    digest = hashlib.sha256(b"headgate forms")
    for text in sorted(each.text for each in credentials if each.user == user):
        digest.update(hashlib.sha256(text.encode()).digest())
    return digest.digest()
