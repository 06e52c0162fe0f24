"""The caller of an endpoint: who asks, what they may do, and what of a job they are shown."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headgate.admin import Admin, Overview
from headgate.http.auth import User
from headgate.http.overview_poller import AppCaller, OverviewPoller
from headgate.http.redaction import NO_SECRETS, Redaction, Secrets


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and the Admin that does what they ask for in their name.

    `reach` runs what is asked of the app where the app is open. `token` is what they have to send with what changes
    something. With `read_only` nobody changes anything. `can_sign_out` is for those with a session.
    """

    user: User
    can_sign_out: bool
    admin: Admin
    redaction: Redaction
    watch: OverviewPoller
    reach: AppCaller
    token: str
    title: str
    read_only: bool

    async def overview(self) -> Overview:
        """What is going on, as of the last second, as they are shown it."""
        return self.shown((await self.watch.look()).overview)

    def shown(self, overview: Overview) -> Overview:
        """An overview without what is not for them: statements of others hold data of theirs, and are for operators."""
        if not overview.obstacles:
            return overview
        is_told = self.user.may("operator")
        return replace(
            overview,
            obstacles=[
                replace(each, statement=self.redaction.text(each.statement) if is_told and each.statement else None)
                for each in overview.obstacles
            ],
        )

    async def secrets(self, job_id: str) -> Secrets:
        """What is hidden of a job, and is not to be read in its texts either. Raises JobNotFound."""
        if not self.redaction:
            return NO_SECRETS
        record = (await self.admin.job(job_id)).record
        return self.redaction.secrets(record.payload, record.result, headers=record.headers)
