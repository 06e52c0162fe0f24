"""Password hashes: scrypt, as one line of text."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from dataclasses import dataclass

from headgate.errors import DeclarationError

PREFIX = "scrypt$"
"""The beginning of a stored hash; any other text in its place is a password."""

_COST, _BLOCK, _LANES = 2**15, 8, 1
"""The cost of a guess: 32 MB and about a tenth of a second."""

_MOST_MEMORY = 256 * 2**20


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """A stored password hash: it can check a password, but not reveal it."""

    cost: int
    block: int
    lanes: int
    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, password: str) -> PasswordHash:
        """Hash a password with a new salt."""
        salt = os.urandom(16)
        return cls(_COST, _BLOCK, _LANES, salt, _scrypt(password, _COST, _BLOCK, _LANES, salt))

    @classmethod
    def parse(cls, text: str) -> PasswordHash:
        """Parse the `str()` of a hash. Raises DeclarationError for anything else."""
        try:
            _, cost, block, lanes, salt, digest = text.split("$")
            found = cls(int(cost), int(block), int(lanes), _decode(salt), _decode(digest))
        except (ValueError, binascii.Error):
            raise _unreadable() from None
        is_power = found.cost > 1 and found.cost & (found.cost - 1) == 0
        if not is_power or found.block < 1 or found.lanes < 1 or len(found.salt) < 8 or len(found.digest) != 32:
            raise _unreadable()
        if 128 * found.cost * found.block * found.lanes > _MOST_MEMORY:
            raise DeclarationError(
                f"this password hash takes more than {_MOST_MEMORY >> 20} MB to check; make a new one"
            )
        return found

    def matches(self, password: str) -> bool:
        """Whether this is the hash of that password. Takes a tenth of a second of a core."""
        found = _scrypt(password, self.cost, self.block, self.lanes, self.salt)
        return hmac.compare_digest(found, self.digest)

    def __str__(self) -> str:
        numbers = f"{self.cost}${self.block}${self.lanes}"
        return f"{PREFIX}{numbers}${_encode(self.salt)}${_encode(self.digest)}"


def _scrypt(password: str, cost: int, block: int, lanes: int, salt: bytes) -> bytes:
    # No password contains a lone surrogate, but a guess may.
    content = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(content, salt=salt, n=cost, r=block, p=lanes, maxmem=2 * _MOST_MEMORY, dklen=32)


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _unreadable() -> DeclarationError:
    return DeclarationError(
        "a password hash has the form scrypt$COST$BLOCK$LANES$SALT$DIGEST; `headgate password` makes one"
    )
