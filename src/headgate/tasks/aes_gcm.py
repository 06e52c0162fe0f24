"""Encryption of payloads and results by AES-GCM."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets

from headgate.errors import DeclarationError, needing
from headgate.keywords import names_keywords

KEY_BYTES = 32
NONCE_BYTES = 12

_KEY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


@names_keywords
class AesGcm:
    """Encrypts with a 256-bit key: `AesGcm("2026-11", os.environ["PAYLOAD_KEY"])`.

    `key_id` names the key, and is stored in clear with each payload: letters, digits, dots, hyphens and underscores, at
    most 40. `key` is 32 random bytes, or their base64 text; `AesGcm.new_key()` makes one. Changed bytes are not
    decrypted. Needs `headgate[encryption]`. Raises DeclarationError for a key of another length.
    """

    def __init__(self, key_id: str, key: bytes | str) -> None:
        with needing("AesGcm needs", "cryptography", install="'headgate[encryption]'"):
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        if not isinstance(key_id, str) or not _KEY_ID.fullmatch(key_id):
            raise DeclarationError(
                f"AesGcm: key_id={key_id!r:.80} must be 1 to 40 letters, digits, dots, hyphens and underscores"
            )
        secret = _key_bytes(key, key_id)
        self.name: str = f"aes-gcm.{key_id}"
        self._about = self.name.encode()
        self._cipher = AESGCM(secret)
        self._invalid = InvalidTag
        # Not the key itself: one key has one use.
        self._digest_key = hmac.digest(secret, b"headgate digest", hashlib.sha256)

    @staticmethod
    def new_key() -> str:
        """Return a new random key, as base64 text."""
        return base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)).decode()

    def encode(self, data: bytes, /) -> bytes:
        """Return the encrypted data, with a new random nonce before it."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data, self._about)

    def decode(self, data: bytes, /) -> bytes:
        """Return the decrypted data. Raises ValueError if it was changed, or encrypted with another key."""
        try:
            return self._cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], self._about)
        except (self._invalid, ValueError):
            raise ValueError("it was changed, or encrypted with another key of this id") from None

    def digest(self, data: bytes, /) -> bytes:
        """Return a digest that nobody can compute without the key."""
        return hmac.digest(self._digest_key, data, hashlib.sha256)

    def __repr__(self) -> str:
        return f"AesGcm({self.name.removeprefix('aes-gcm.')!r}, '…')"


def _key_bytes(key: object, key_id: str) -> bytes:
    """Return the bytes of a key. Raises DeclarationError, which does not show it."""
    given = key
    if isinstance(given, str):
        try:
            padded = given.strip().replace("-", "+").replace("_", "/")
            given = base64.b64decode(padded, validate=True)
        except (binascii.Error, ValueError):
            given = b""
    if not isinstance(given, bytes) or len(given) != KEY_BYTES:
        raise DeclarationError(
            f"AesGcm: key {key_id!r} must be {KEY_BYTES} bytes, or their base64 text; AesGcm.new_key() makes one"
        )
    return given
