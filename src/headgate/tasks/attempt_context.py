"""The attempt context: the running job as the functions around the attempt see and change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headgate.jobs.job import ClaimedJob
from headgate.tasks.context import Completion, CostSettler, JobContext
from headgate.tasks.job_log import Reports


class AttemptContext(JobContext):
    """The running job, for functions of `@app.around_attempt`: that of the handler, with the arguments.

    `arguments` (by name, as they are stored, without defaults) and `headers` may be changed until `run()` is called.
    The changes are for this attempt: a retry begins with what is stored.
    """

    __slots__ = ("_are_arguments_read", "_arguments", "_headers")

    def __init__(
        self,
        job: ClaimedJob,
        limits: Sequence[str],
        charge: CostSettler | None,
        reports: Reports | None,
        completion: Completion | None,
        arguments: Mapping[str, Any],
    ) -> None:
        super().__init__(job, limits, charge, reports, completion)
        self._arguments = dict(arguments)
        self._are_arguments_read = False
        self._headers = dict(job.headers or {})

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the handler by name."""
        self._are_arguments_read = True
        return self._arguments

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the job."""
        return self._headers


def read_arguments(context: AttemptContext) -> dict[str, Any] | None:
    """Return the arguments if a function has read, and so may have changed them; else None."""
    return context._arguments if context._are_arguments_read else None
