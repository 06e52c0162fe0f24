"""The caller of an endpoint: the user, their rights, and what is redacted for them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headgate.admin import Admin, Overview, SlowCounts
from headgate.http.auth import User
from headgate.http.overview_poller import OverviewPoller
from headgate.http.redaction import NO_SECRETS, Redaction, Secrets
from headgate.http.reports import ReportMaker
from headgate.tasks.codec import Codecs


@dataclass(frozen=True, slots=True)
class Caller:
    """The user of a request, and the Admin that acts in their name.

    `counts` and `reports` are shared by all requests. `codecs` are the app's. `reach` runs a coroutine where the app is
    open, which may be the loop of another thread. `token` has to be sent with changes. With `read_only` nothing can be
    changed. `can_sign_out` is true for users with a session. `target` is how the command line names the app.
    """

    user: User
    can_sign_out: bool
    admin: Admin
    redaction: Redaction
    watch: OverviewPoller
    counts: SlowCounts
    reports: ReportMaker
    codecs: Codecs
    reach: Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]
    token: str
    title: str
    read_only: bool
    target: str | None

    async def overview(self) -> Overview:
        """Return the overview as of the last second, redacted for the user."""
        return self.shown((await self.watch.look()).overview)

    def shown(self, overview: Overview) -> Overview:
        """Return an overview redacted for the user: statements of database sessions contain data, so operators only."""
        may_read, text = self.user.may("operator"), self.redaction.text
        return replace(
            overview,
            blockers=[
                replace(each, statement=text(each.statement) if may_read and each.statement else None)
                for each in overview.blockers
            ],
            alerts=[replace(each, error=each.error and text(each.error)) for each in overview.alerts],
        )

    async def secrets(self, job_id: str) -> Secrets:
        """Return the hidden values of a job, which are also hidden in its texts. Raises JobNotFound."""
        if not self.redaction:
            return NO_SECRETS
        record = (await self.admin.job(job_id)).record
        return self.secrets_of(record.payload, record.result, fields=(record.headers, record.annotations))

    def secrets_of(self, *stored: str | None, fields: Sequence[Mapping[str, Any] | None]) -> Secrets:
        """Return the hidden values of stored payloads and results, encoded or not, of headers and annotations."""
        if not self.redaction:
            return NO_SECRETS
        texts = [None if text is None else self.codecs.opened(text) for text in stored]
        return self.redaction.secrets(*texts, fields=fields)

    def visible(self, stored: str) -> str:
        """Return a stored payload or result; an encoded one decoded for operators, if the app has the codec."""
        return self.codecs.opened(stored) if self.user.may("operator") else stored
