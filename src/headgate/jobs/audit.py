"""How much is kept of a job's life beside the job itself, and what people did."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

import msgspec

from headgate.errors import DeclarationError

LONGEST_ACTOR = 200
LONGEST_DETAIL = 1000
"""Characters of an audit entry; what is longer is cut."""


class AuditLevel(IntEnum):
    """What the audit trail of a job holds; each level holds what the one before holds.

    NONE: nothing but the job's own row. ERRORS: attempts that ended with an error, or with their node. MINIMAL: every
    attempt that did not succeed. FULL: also what people did to the job.
    """

    NONE = 0
    ERRORS = 1
    MINIMAL = 2
    FULL = 3

    @property
    def word(self) -> str:
        """As it is written in options and settings."""
        return self.name.lower()

    def keeps_attempt(self, outcome: str, *, has_error: bool) -> bool:
        """Whether an attempt that did not succeed is kept. The stores say the same in `keep_attempts.sql`."""
        return self >= (AuditLevel.ERRORS if has_error or outcome == "lost" else AuditLevel.MINIMAL)


AuditWord = Literal["none", "errors", "minimal", "full"]


def audit_level(word: AuditWord | AuditLevel, where: str) -> AuditLevel:
    """The level that was named. Raises DeclarationError for any other word."""
    if isinstance(word, AuditLevel):
        return word
    levels = {level.word: level for level in AuditLevel}
    if word not in levels:
        raise DeclarationError(f"{where}: audit={word!r} must be one of {', '.join(levels)}")
    return levels[word]


SubjectKind = Literal["job", "limit", "queue", "schedule"]


class AuditRecord(msgspec.Struct, frozen=True, array_like=True):
    """What somebody is about to do: it becomes an audit entry in the commit that does it, if anything comes of it."""

    actor: str
    action: str
    kind: SubjectKind
    subject: str
    detail: str | None = None

    def cut(self) -> AuditRecord:
        """The same, no longer than a row should be."""
        detail = None if self.detail is None else self.detail[:LONGEST_DETAIL]
        return AuditRecord(self.actor[:LONGEST_ACTOR], self.action, self.kind, self.subject, detail)


class AuditEntry(msgspec.Struct, frozen=True, array_like=True):
    """What somebody did, and when (wall microseconds); `number` grows."""

    number: int
    at: int
    actor: str
    action: str
    kind: SubjectKind
    subject: str
    detail: str | None


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries to list, newest first; `before` is the number that ended the page before."""

    kind: SubjectKind | None = None
    subject: str | None = None
    actor: str | None = None
    before: int | None = None
    count: int = 50
