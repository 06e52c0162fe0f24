"""Authentication: users, their roles, and the ways to identify the user of a request."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import inspect
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

from starlette.requests import Request

from headgate.errors import DeclarationError
from headgate.password_hash import PREFIX, PasswordHash

Role = Literal["viewer", "operator", "admin"]
"""The rights of a user. Each role includes those before it: view; act on jobs, queues and schedules; change limits and
remove."""

_RANK: Mapping[str, int] = {role: rank for rank, role in enumerate(get_args(Role))}

LONGEST_CREDENTIAL = 4096

CHECKS_AT_ONCE = 2
"""Password hashes that are checked at the same time; each takes a core and 32 MB for a tenth of a second."""


@dataclass(frozen=True, slots=True)
class User:
    """A user, by the name that the audit log records, and their role (default: viewer)."""

    name: str
    role: Role = "viewer"

    def __post_init__(self) -> None:
        if self.role not in _RANK:
            raise DeclarationError(f"user {self.name!r}: role={self.role!r} must be one of {', '.join(_RANK)}")
        if not self.name:
            raise DeclarationError("a user needs a name: the audit log records it")

    def may(self, role: Role) -> bool:
        """Whether the user may do what that role may."""
        return _RANK[self.role] >= _RANK[role]


class WrongCredential(Exception):
    """A credential is wrong: a failure of its address and the user `name` ("" without a name).

    With `credential`, everything that was checked, repeated failures with the same one count once for address and name.
    """

    def __init__(self, *args: object, credential: str | None = None, name: str = "") -> None:
        super().__init__(*args)
        self.credential = credential
        self.name = name


class Auth(Protocol):
    """Identifies the user of a request. `challenge` is the WWW-Authenticate of a 401, "" for none.

    `secret` signs the token of a user: equal in all processes with the same credentials, None without one. It depends
    only on what this user knows anyway: they see what it has signed, and could try other users' passwords on it,
    offline.
    """

    @property
    def challenge(self) -> str: ...

    def secret(self, user: User) -> bytes | None: ...

    async def user(self, request: Request) -> User | None:
        """Return the user; None without a credential. Raises WrongCredential."""
        ...


@dataclass(frozen=True, slots=True)
class SignInForm:
    """The fields of the sign-in page: a token, or with `has_name` a name and a password."""

    label: str
    hint: str
    has_name: bool


@dataclass(frozen=True, slots=True)
class SignInFields:
    """The fields that a user sent from the sign-in page."""

    name: str
    secret: str


class SessionAuth(Auth, Protocol):
    """An Auth with a sign-in page: a browser exchanges a credential for the cookie of a session."""

    @property
    def form(self) -> SignInForm: ...

    async def sign_in(self, fields: SignInFields) -> User:
        """Return the user. Raises WrongCredential."""
        ...

    def has(self, user: User) -> bool:
        """Whether this user still exists, with this role."""
        ...


@dataclass(frozen=True, slots=True)
class Credential:
    """A password or a token, and its user. Its text is not in its repr."""

    user: User
    text: str = field(repr=False)


class BasicAuth:
    """Names and passwords: `BasicAuth(ada=("admin", password), …)`, or a mapping.

    Browsers sign in on a page and get a session; programs send both with each request (`curl -u ada`). Instead of a
    password, its hash from `headgate password` can be given (it begins with `scrypt$`). There is no default password,
    and a password of fewer than 8 characters is refused. Serve it over HTTPS.
    """

    # Not Basic: for that, browsers open a window of their own, in which users cannot sign out.
    challenge = 'Session realm="Headgate"'
    form = SignInForm("Password", "", has_name=True)

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
        # If one is a hash, all are, so that the duration of a check does not reveal names.
        self._hashes: dict[str, PasswordHash] = {}
        if any(each.text.startswith(PREFIX) for each in self._credentials.values()):
            for name, each in self._credentials.items():
                is_hash = each.text.startswith(PREFIX)
                self._hashes[name] = PasswordHash.parse(each.text) if is_hash else PasswordHash.of(each.text)
        self._threads: ThreadPoolExecutor | None = None
        # Programs send their password with each request, and a hash is slow to check. So a digest of a password that
        # was right is kept in memory, under a key that never leaves this process.
        self._key = os.urandom(32)
        self._checked: dict[str, bytes] = {}
        # Requests that come with the same password while it is checked share the check.
        self._checking: dict[tuple[str, bytes], Future[bool]] = {}

    def secret(self, user: User) -> bytes | None:
        return _secret_of(user, self._credentials.values())

    def has(self, user: User) -> bool:
        known = self._credentials.get(user.name)
        return known is not None and known.user == user

    async def sign_in(self, fields: SignInFields) -> User:
        return await self._check(fields.name, fields.secret)

    async def user(self, request: Request) -> User | None:
        shown = _credential_in(request, "basic")
        if shown is None:
            return None
        try:
            name, separator, password = base64.b64decode(shown, validate=True).decode().partition(":")
        except ValueError:
            raise WrongCredential(credential=shown) from None
        if not separator:
            raise WrongCredential(credential=shown, name=name)
        return await self._check(name, password)

    async def _check(self, name: str, password: str) -> User:
        known = self._credentials.get(name)
        if self._hashes:
            is_right = await self._check_hash(name, password)
        else:
            # Compared even for an unknown name, so that the duration does not reveal names.
            is_right = _is_same(password, "" if known is None else known.text)
        if known is None or not is_right:
            raise WrongCredential(credential=f"{name}:{password}", name=name)
        return known.user

    async def _check_hash(self, name: str, password: str) -> bool:
        digest = hmac.digest(self._key, password.encode("utf-8", "surrogatepass"), "sha256")
        if hmac.compare_digest(digest, self._checked.get(name, b"")):
            return True
        checking = self._checking.get((name, digest))
        if checking is None:
            kept = self._hashes.get(name) or next(iter(self._hashes.values()))
            self._threads = self._threads or ThreadPoolExecutor(CHECKS_AT_ONCE, "headgate-passwords")
            checking = self._checking[name, digest] = self._threads.submit(kept.matches, password)
            checking.add_done_callback(lambda _: self._checking.pop((name, digest), None))
        # A request that is cancelled must not cancel the check for the others.
        is_right = await asyncio.shield(asyncio.wrap_future(checking))
        if is_right and name in self._hashes:
            self._checked[name] = digest
        return is_right and name in self._hashes


class BearerAuth:
    """Tokens, for programs and for a proxy that adds them: `BearerAuth({token: User("deploy", "operator")})`.

    In a browser, users sign in with the token on a page. A program that can only send a name and a password sends the
    token as the password, with any name. A token of fewer than 16 characters is refused.
    """

    challenge = 'Bearer realm="Headgate"'
    form = SignInForm("Token", "", has_name=False)

    def __init__(self, tokens: Mapping[str, User]) -> None:
        if not tokens:
            raise DeclarationError('BearerAuth needs a token: BearerAuth({token: User("deploy", "operator")})')
        for token, user in tokens.items():
            _require_strong(token, f"the token of {user.name!r}", least=16)
        self._credentials = tuple(Credential(user, token) for token, user in tokens.items())

    def secret(self, user: User) -> bytes | None:
        return _secret_of(user, self._credentials)

    def has(self, user: User) -> bool:
        return any(each.user == user for each in self._credentials)

    async def sign_in(self, fields: SignInFields) -> User:
        return self._check(fields.secret)

    async def user(self, request: Request) -> User | None:
        shown = _credential_in(request, "bearer")
        if shown is None:
            basic = _credential_in(request, "basic")
            if basic is None:
                return None
            try:
                shown = base64.b64decode(basic, validate=True).decode().partition(":")[2]
            except ValueError:
                raise WrongCredential(credential=basic) from None
        return self._check(shown)

    def _check(self, shown: str) -> User:
        # All are compared, so that the duration does not reveal a near match.
        found = [each.user for each in self._credentials if _is_same(shown, each.text)]
        if not found:
            raise WrongCredential(credential=shown)
        return found[0]


class OneTimeToken:
    """Signs in the browser that opens a link with its `token`, once, as `user`; then there is a new token.

    For `headgate dashboard` and for development: the link is printed where only you can read it. `on_used` is called
    with the new token. It has 256 bits, is stored in this process only, and signs in a browser, never a program.
    """

    challenge = 'Session realm="Headgate"'
    form = SignInForm(
        "One-time token",
        "Open the link that was printed where the dashboard was started, or paste its token. Each works once; "
        "then the next one is printed.",
        has_name=False,
    )

    def __init__(self, user: User = User("local", "admin"), *, on_used: Callable[[str], None] | None = None) -> None:
        self.token = secrets.token_urlsafe(32)
        self._user = user
        self._on_used = on_used

    def secret(self, user: User) -> bytes | None:
        return None

    def has(self, user: User) -> bool:
        return user == self._user

    async def sign_in(self, fields: SignInFields) -> User:
        # Users may paste the whole link.
        if not _is_same(fields.secret.strip().rpartition("token=")[2], self.token):
            raise WrongCredential(credential=fields.secret)
        self.token = secrets.token_urlsafe(32)
        if self._on_used is not None:
            self._on_used(self.token)
        return self._user

    async def user(self, request: Request) -> User | None:
        return None


class CallbackAuth:
    """Calls your own function, sync or async, with the Starlette request; it returns a `User`, or None.

    For the sessions of the app that mounts the dashboard: `CallbackAuth(lambda request: user_of(request.session))`. A
    browser without a user is shown a page that says so, with a link to `sign_in_url` if there is one. A sync function
    runs on the event loop and must not block. A function that compares passwords itself raises
    `WrongCredential(name=…)` for a wrong one, so that guesses are slowed down and logged; None is not.

    It is called for each request, even for files: only the function knows on which part of a request its result
    depends, and a sign-out takes effect at once. A slow function can cache its results for a few seconds, but only
    users, not None.
    """

    challenge = ""

    def __init__(
        self, callback: Callable[[Request], User | Awaitable[User | None] | None], *, sign_in_url: str | None = None
    ) -> None:
        if not callable(callback):
            raise DeclarationError(f"CallbackAuth({callback!r}) needs a function from a request to a User or None")
        if sign_in_url is not None and not sign_in_url.startswith(("/", "https://", "http://")):
            raise DeclarationError(f"sign_in_url={sign_in_url!r} must begin with a slash, https:// or http://")
        self._callback = callback
        self.sign_in_url = sign_in_url

    def secret(self, user: User) -> bytes | None:
        return None

    async def user(self, request: Request) -> User | None:
        found = self._callback(request)
        if inspect.isawaitable(found):
            found = await found
        if found is not None and not isinstance(found, User):
            raise TypeError(f"the callback of CallbackAuth returned {type(found).__name__}, neither a User nor None")
        return found


def _credential_in(request: Request, scheme: str) -> str | None:
    """Return the content of the Authorization header, if it is of this scheme."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != scheme:
        return None
    if len(value) > LONGEST_CREDENTIAL:
        raise WrongCredential
    return value.strip()


def _is_same(shown: str, known: str) -> bool:
    """Compare digests, in a time that depends neither on where the texts differ nor on their lengths."""
    return hmac.compare_digest(
        hashlib.sha256(shown.encode("utf-8", "surrogatepass")).digest(), hashlib.sha256(known.encode()).digest()
    )


def _require_strong(text: str, what: str, least: int = 8) -> None:
    if not isinstance(text, str) or len(text) < least:
        raise DeclarationError(f"{what} must have at least {least} characters")


def _secret_of(user: User, credentials: Iterable[Credential]) -> bytes:
    """Return a secret that is equal in all processes for the same credentials of a user, and as hard to guess."""
    digest = hashlib.sha256(b"headgate forms")
    for text in sorted(each.text for each in credentials if each.user == user):
        digest.update(hashlib.sha256(text.encode()).digest())
    return digest.digest()
