"""The audit level of a job, and the audit entries of what operators did."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

import msgspec

from headgate.errors import DeclarationError

LONGEST_ACTOR = 200
LONGEST_DETAIL = 1000
"""The most characters of an audit entry; longer text is cut."""


class AuditLevel(IntEnum):
    """How much a job's audit trail holds; each level includes the one before.

    NONE: only the job's own row. ERRORS: attempts that ended with an error, or with the death of their node. MINIMAL:
    every attempt that did not succeed. FULL: also what operators did to the job.
    """

    NONE = 0
    ERRORS = 1
    MINIMAL = 2
    FULL = 3

    @property
    def word(self) -> str:
        """The level as it is written in options and settings."""
        return self.name.lower()


AuditWord = Literal["none", "errors", "minimal", "full"]


def audit_level(word: AuditWord | AuditLevel, where: str) -> AuditLevel:
    """Return the level of that name. Raises DeclarationError for any other word."""
    if isinstance(word, AuditLevel):
        return word
    levels = {level.word: level for level in AuditLevel}
    if not isinstance(word, str) or word not in levels:
        raise DeclarationError(f"{where}: audit={word!r} must be one of {', '.join(levels)}")
    return levels[word]


SubjectKind = Literal["job", "limit", "queue", "schedule", "node", "user"]

SignInAction = Literal["sign in", "sign out", "sign out everywhere"]

SIGN_OUTS_KEPT = 12 * 3600
"""Seconds for which a sign-out is kept, whatever the retention: as long as the session that it ended would last."""


class AuditRecord(msgspec.Struct, frozen=True, array_like=True):
    """An action about to be done; it becomes an audit entry in the same commit, if the action has an effect."""

    actor: str
    action: str
    kind: SubjectKind
    subject: str
    detail: str | None = None

    def cut(self) -> AuditRecord:
        """Return the record with its texts cut to the length of a row."""
        detail = None if self.detail is None else self.detail[:LONGEST_DETAIL]
        return AuditRecord(self.actor[:LONGEST_ACTOR], self.action, self.kind, self.subject, detail)


class AuditEntry(msgspec.Struct, frozen=True, array_like=True):
    """An action that was done, and when (wall microseconds); `number` grows."""

    number: int
    at: int
    actor: str
    action: str
    kind: SubjectKind
    subject: str
    detail: str | None


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the entries to list, newest first; `before` is the last number of the previous page."""

    kind: SubjectKind | None = None
    subject: str | None = None
    actor: str | None = None
    before: int | None = None
    count: int = 50
